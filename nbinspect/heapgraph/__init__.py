"""The live objects and what refers to what, across Python and autograd's C++.

`graph` puts it together from four parts: `native` (edges that only torch knows), `index` (edges
that Python's collector knows), `roots` (where the user's names begin) and `labels` (how a path is
read aloud).
"""
