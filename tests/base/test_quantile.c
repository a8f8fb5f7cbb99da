/* test_quantile.c checks medians and quantiles, with and without interpolation. */
#include "tests/lib/test.h"
#include "espresso_impl/base/quantile.h"

TEST(medians) {
    double odd[] = {5, 1, 3}, even[] = {4, 1, 3, 2}, one[] = {7}, same[] = {2, 2, 2, 2, 9};
    assert_true(esp__median(odd, 3) == 3 && odd[0] == 1 && odd[1] == 3 && odd[2] == 5);
    assert_true(esp__median(even, 4) == 2.5);
    assert_true(esp__median(one, 1) == 7);
    assert_true(esp__median(same, 5) == 2);
    assert_true(esp__median(NULL, 0) == 0);
}

TEST(between) {
    const double v[] = {10, 20, 40, 80, 160};
    assert_true(esp__quantile(v, 5, 0) == 10 && esp__quantile(v, 5, 1) == 160);
    assert_true(esp__quantile(v, 5, 0.25) == 20 && esp__quantile(v, 5, 0.5) == 40);
    assert_true(fabs(esp__quantile(v, 5, 0.9) - (80 + 0.6 * 80)) < 1e-9);
    assert_true(esp__quantile(v, 1, 0.9) == 10);
    assert_true(esp__quantile(v, 0, 0.9) == 0);
}

TEST(quartiles) {
    double v[100];
    for (int i = 0; i < 100; i++) v[i] = 99 - i;
    esp__sort(v, 100);
    for (int i = 0; i < 100; i++) assert_true(v[i] == i);
    assert_true(esp__quartile_distance(v, 100) == 74 - 25);
    assert_true(esp__quartile_distance(v, 5) == 2 && esp__quartile_distance(v, 1) == 0);
    assert_true(esp__quartile_distance(v, 0) == 0);
}
