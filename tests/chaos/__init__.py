"""Kill -9 under load, and a judge."""
