"""Live pictures: one class and one ES module each."""
