"""What a board's own sensors say: temperature, clock frequency, throttling, power. From sysfs,
without vcgencmd.

    sensors = detect()                       detect.py       those that are there
    sample(sensors)                          detect.py       one value of each metric
    Energy().add(now_s, watts)               energy.py       joules from samples of power
    EnergyMeter(rails).take()                energy.py       the same with a thread that samples

Every sensor is a reader over a root folder, so that a recorded tree can stand in for "/"
(tests/telemetry/trees). One that is not there is left out without a word, one that goes away gives
no value.
"""
