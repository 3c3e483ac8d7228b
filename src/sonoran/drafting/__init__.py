"""What the engine can draft with: a model, n-grams, a draft worker (SSD), and a policy around any of them."""
