"""The pure core: values in, values out; no clock, dice, files, threads or network."""
