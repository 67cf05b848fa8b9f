"""What `%%nanwatch` finds and what it costs, against the tools that people use today."""
