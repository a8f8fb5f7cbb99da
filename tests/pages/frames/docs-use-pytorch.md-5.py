# -n 2: numpy
import espresso
import numpy

w = gradient = numpy.ones((100, 100), numpy.float32)
BLOCK
    assert gradient.any()
