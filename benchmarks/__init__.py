"""What nbinspect costs, and what its answers are worth, against a plain run and other tools.

``python -m benchmarks`` answers every question with a table; see `benchmarks.__main__`.
"""
