"""Changes of clients, their grants and the limits of endpoints; the certificate."""
