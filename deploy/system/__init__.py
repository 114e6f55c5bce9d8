"""What the operating system gives: whole files, standard output, real time, installed extras."""
