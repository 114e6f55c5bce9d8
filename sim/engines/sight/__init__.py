"""What all cameras of ours have in common, whatever they look at: lenses, what is around, and how pictures come out."""
