/* game.c: solves the linear program of the lower bound, a matrix game: it finds the best weights of the rows
 * (inequalities) against the columns (choices of options). A wrong solution lowers the bound but keeps it valid. */
#include "planner/bound/bound.h"

static void esp__game_pivot(esp__game *m, uint32_t r, uint32_t c) {
    uint32_t width = m->n_columns + m->n_rows + 1;
    double *row = m->t[r], scale = 1.0 / row[c];
    for (uint32_t k = 0; k < width; k++) row[k] *= scale;
    for (uint32_t i = 0; i <= m->n_rows; i++) {
        double f = m->t[i][c], *to = m->t[i];
        if (i == r || f == 0.0) continue;
        for (uint32_t k = 0; k < width; k++) to[k] -= f * row[k];
    }
    m->basis[r] = c;
}

/* Returns the row of the simplex tableau whose variable leaves the basis when column c enters (least ratio), or n_rows
 * if there is none. */
static uint32_t esp__game_leaves(const esp__game *m, uint32_t c) {
    uint32_t best = m->n_rows, rhs = m->n_columns + m->n_rows;
    double least = 0.0;
    for (uint32_t j = 0; j < m->n_rows; j++) {
        if (m->t[j][c] < 1e-9) continue;
        double ratio = m->t[j][rhs] / m->t[j][c];
        if (best == m->n_rows || ratio < least) best = j, least = ratio;
    }
    return best;
}

/* Solves the matrix game by the simplex method: maximize the sum of w_i while sum_i w_i g_ij <= 1 for each j and w_i >=
 * 0. The value of the game is 1 divided by the maximum. The dual solution, scaled, has the weights of the rows. */
ESP__FN void esp__game_solve(esp__game *m) {
    uint32_t n = m->n_columns, width = n + m->n_rows + 1, rhs = n + m->n_rows;
    double sum = 0.0, all = 0.0;
    for (uint32_t j = 0; j <= m->n_rows; j++) memset(m->t[j], 0, width * sizeof **m->t);
    for (uint32_t j = 0; j < m->n_rows; j++) {
        for (uint32_t i = 0; i < n; i++) m->t[j][i] = m->g[i][j];
        m->t[j][n + j] = m->t[j][rhs] = 1.0;
        m->basis[j] = n + j;
    }
    for (uint32_t i = 0; i < n; i++) m->t[m->n_rows][i] = -1.0;
    for (uint32_t round = 0; round < 200; round++) {
        uint32_t c = width, leaves;
        double least = -1e-10;
        for (uint32_t k = 0; k < rhs; k++)
            if (m->t[m->n_rows][k] < least) least = m->t[m->n_rows][k], c = k;
        if (c == width || (leaves = esp__game_leaves(m, c)) == m->n_rows) break;
        esp__game_pivot(m, leaves, c);
    }
    memset(m->column, 0, sizeof m->column);
    for (uint32_t j = 0; j < m->n_rows; j++) {
        double y = m->t[m->n_rows][n + j];
        m->row[j] = y > 0.0 ? y : 0.0;
        all += m->row[j];
        if (m->basis[j] >= n) continue;
        m->column[m->basis[j]] = m->t[j][rhs] > 0.0 ? m->t[j][rhs] : 0.0;
        sum += m->column[m->basis[j]];
    }
    m->value = sum > 0.0 ? 1.0 / sum : 0.0;
    for (uint32_t j = 0; j < m->n_rows; j++) m->row[j] = all > 0.0 ? m->row[j] / all : 1.0 / m->n_rows;
    for (uint32_t i = 0; i < n && sum > 0.0; i++) m->column[i] /= sum;
}
