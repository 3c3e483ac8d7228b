"""The PyTorch backend: ``Rows -> logits`` on devices that PyTorch drives. Only ``load`` imports it, when asked."""
