"""What runs forward passes: the protocol ``Rows -> logits`` (``base``), the CPU (``native``), a factory (``load``)."""
