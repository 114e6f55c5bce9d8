# Included at the end of mk/source.mk.
SRC += \
            sim2metal/sim2metal.c \
            sim2metal/flight.c \
            sim2metal/signals.c \
            sim2metal/policy.c

# Not -ffast-math, and multiply and add stay apart: the same bits as everywhere.
%/sim2metal/policy.o %/sim2metal/flight.o %/sim2metal/signals.o: CC_DEFAULT_OPTIMISATION += -fno-fast-math -ffp-contract=off
