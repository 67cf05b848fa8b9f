"""The autograd graph behind a tensor: what it is, what it keeps, where it is broken."""
