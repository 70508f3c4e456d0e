"""What the product speaks about: frozen values of the standard library, no effect anywhere."""
