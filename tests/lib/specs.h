/* specs.h: codecs that the tests of all codecs and the fuzz targets have in common. */
#ifndef CODEC_SPECS
#define CODEC_SPECS                                                                                                    \
    "fp8", "fp8:mantissa=2,block=32", "dynamic8", "qsgd", "qsgd:bits=4,block=1024", "qsgd:bits=3,norm=0",              \
        "qsgd:elias=1", "qsgd:bits=3,block=32,elias=1", "terngrad", "natural", "maxmin", "maxmin:bits=3,random=1",     \
        "onebit", "onebit:block=64", "signsgd", "signum", "mxnet1bit", "threshold", "sketchml", "sketchml:bits=3",     \
        "threelc", "threelc:s=1.75", "inceptionn", "inceptionn:bound=3", "adaptive", "adaptive:ratio=0.3", "lossless", \
        "loco:of=(int4)", "loco:beta=0.5,reset=2,of=(efsignsgd:norm=2)"
#endif
