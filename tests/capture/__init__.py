"""Change capture: pure parts by properties and samples, the whole of it against real databases."""
