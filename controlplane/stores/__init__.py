"""Model repositories in object stores (S3, Google Cloud Storage, Azure), copied into a local folder."""
