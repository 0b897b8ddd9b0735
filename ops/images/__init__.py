"""Images: built from a lock, proved from the inside, moved to hosts. The Docker SDK is imported only here."""
