"""What is in memory, who holds it, and what a cell did to it."""
