"""The engine: scheduling, KV memory, the one round that is AR, SD and SSD, statistics and traces."""
