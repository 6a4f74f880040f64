"""The commands of `holdfast`, a module each."""
