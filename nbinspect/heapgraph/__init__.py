"""The live objects and what refers to what, across Python and autograd's C++.

`graph` puts it together: `native` has the edges that only torch knows, `index` those that Python's
collector knows, `roots` says where the user's names begin, `labels` and `parts` how a path is read
aloud, and `objects` looks at things without running their code.
"""
