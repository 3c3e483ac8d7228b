"""The algorithm of SSD on the draft's side: predict outcomes, decode the tree, cache what to send next."""
