"""What is fastest here: measure (``measure``), predict (``predict``) and choose (``choose``) from a ``profile``."""
