"""Subjects whose times are known."""


class FakeSubject:
    """Takes `base` seconds for a pass and `step` more for each further row; prefill takes ten passes."""

    def __init__(self, name, base, step):
        self.name, self.base, self.step = name, base, step
        self.calls = []
        self.closed = False

    def forward_seconds(self, rows):
        self.calls.append(rows)
        return self.base + self.step * (rows - 1)

    def prefill_seconds(self):
        self.calls.append("prefill")
        return 10 * self.base

    def describe(self):
        return {"engine": self.name, "load": {"seconds": 1.0, "resident_without_kv_per_file_byte": 1.1}}

    def close(self):
        self.closed = True


class FakeOwn(FakeSubject):
    """Reads a million bytes, and a thousand per row; a plain read loop takes half a second per gigabyte."""

    def read_loop_seconds(self):
        self.calls.append("read loop")
        return 0.5

    def bytes_read(self, rows):
        return 1_000_000 + 1000 * rows
