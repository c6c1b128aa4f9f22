"""Studies on real data: a weekly portfolio of American stocks, and the day-ahead commitment of power stations."""
