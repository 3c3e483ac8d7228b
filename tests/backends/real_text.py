"""A fixed text of prose and code of about 512 tokens, written for the measurement of perplexity."""

TEXT = '''\
The lighthouse at Varn had been automatic for eleven years when Ilse moved into the keeper's house.
Nobody needed her to trim a wick or wind a clockwork. She had rented the place because it was cheap
in winter, and because the ferry stopped running in November, which meant that nobody could ask her
to come to a meeting. Her work was a program that predicted tides from pressure readings, and it was
late.

On the third evening the lamp went out. She noticed it the way one notices that a refrigerator has
stopped humming: by an uneasy quiet in the corner of the window. The manual in the hallway said that
the fault would be reported by radio and that a technician would arrive within two days, weather
permitting. The weather, plainly, did not permit. So she took a torch, climbed the hundred and four
steps, and found a moth the size of her palm sitting on the light sensor, which had concluded that
it was noon.

The program that she went back to looked like this:

```python
from dataclasses import dataclass


@dataclass
class Reading:
    """One measurement: hours since midnight and pressure in hectopascals."""

    hour: float
    pressure: float


def smooth(readings: list[Reading], window: int = 3) -> list[Reading]:
    """Replace every pressure by the mean of its neighbours within the window."""
    if window < 1 or window % 2 == 0:
        raise ValueError(f"window must be odd and positive, got {window}")
    half = window // 2
    result = []
    for i, reading in enumerate(readings):
        nearby = readings[max(0, i - half) : i + half + 1]
        mean = sum(r.pressure for r in nearby) / len(nearby)
        result.append(Reading(reading.hour, mean))
    return result


def surge(pressure: float, normal: float = 1013.25) -> float:
    """Centimetres by which the sea rises: one for every hectopascal below normal."""
    return normal - pressure
```

It was wrong in the way that most programs are wrong, which is to say that it did exactly what she
had written. At the ends of the list the window was cut short, and the mean leaned towards the side
that still had data.
'''
