"""The golden runs, a file a group; :mod:`tests.golden` compares them."""
