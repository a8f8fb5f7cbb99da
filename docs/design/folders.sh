#!/bin/sh
# folders.sh: draws folders.svg, which shows the folders that each folder includes, from the #include lines of the
# sources. Every arrow goes down, from the folder that includes. Folders that include each other, directly or not, share
# a box. An arrow is left out if other arrows lead the same way.
#   sh docs/design/folders.sh [FILE]        (run in the project's root; FILE is docs/design/folders.svg)
set -u
export LC_ALL=C
out=${1:-docs/design/folders.svg}
find espresso_impl planner codecs backends tools -type f | sort | grep -E '\.(c|cc|h|inc|cu|cuh)$' |
    xargs grep -E '^ *# *include "[^"]*/' /dev/null | sed -E 's|/[^/:]*:.*"(.*)/[^/"]*".*| \1|' | sort -u |
    awk '$2 ~ /^(espresso_impl|planner|codecs|backends|tools)/' |
    awk '
function node(folder) {
    if (!(folder in number)) { number[folder] = ++n; name[n] = folder }
    return number[folder]
}
function max(a, b) { return a > b ? a : b }
# A place in row r: of box b, or (b = 0) of an arrow that passes the row.
function add_place(r, b, width) {
    place = ++n_places
    row_of[place] = r
    box_of[place] = b
    width_of[place] = width
    row[r, ++n_row[r]] = place
    return place
}
function link(a, b) { up[b, ++n_up[b]] = a; down[a, ++n_down[a]] = b }
# Sorts row r by key[].
function sort_row(r,    i, k, p) {
    for (i = 2; i <= n_row[r]; i++) {
        p = row[r, i]
        for (k = i; k > 1 && key[row[r, k - 1]] > key[p]; k--) row[r, k] = row[r, k - 1]
        row[r, k] = p
    }
    for (i = 1; i <= n_row[r]; i++) at[row[r, i]] = i
}
# The mean of where[] over the neighbours of place p: above (side 1), below (-1) or both (0); where[p] if there are
# none.
function mean(p, where, side,    i, sum, count) {
    if (side >= 0) for (i = 1; i <= n_up[p]; i++) { sum += where[up[p, i]]; count++ }
    if (side <= 0) for (i = 1; i <= n_down[p]; i++) { sum += where[down[p, i]]; count++ }
    return count ? sum / count : where[p]
}
function crossings(    p, q, i, k, r, a, b, sum) {
    for (r = 1; r <= rows; r++)
        for (a = 1; a <= n_row[r]; a++)
            for (b = a + 1; b <= n_row[r]; b++) {
                p = row[r, a]
                q = row[r, b]
                for (i = 1; i <= n_down[p]; i++)
                    for (k = 1; k <= n_down[q]; k++) sum += at[down[p, i]] > at[down[q, k]]
            }
    return sum
}
# Moves each place of row r close to its want[], in the same order, with a gap between two places.
function spread(r,    i, p, q, edge) {
    edge = -100000
    for (i = 1; i <= n_row[r]; i++) {
        p = row[r, i]
        right[p] = max(want[p], edge + width_of[p] / 2)
        edge = right[p] + width_of[p] / 2 + GAP
    }
    edge = 100000
    for (i = n_row[r]; i >= 1; i--) {
        p = row[r, i]
        q = want[p] < edge - width_of[p] / 2 ? want[p] : edge - width_of[p] / 2
        edge = q - width_of[p] / 2 - GAP
        x[p] = (q + right[p]) / 2
    }
}
# Where the arrow between places p and other meets p: at its lower edge (below = 1) or its upper one. Arrows of an edge
# stand apart.
function port(p, other, below,    i, q, left, count) {
    if (width_of[p] == THIN) return x[p]
    count = below ? n_down[p] : n_up[p]
    for (i = 1; i <= count; i++) {
        q = below ? down[p, i] : up[p, i]
        if (x[q] < x[other] || (x[q] == x[other] && q < other)) left++
    }
    return x[p] + (left + 0.5 - count / 2) * (width_of[p] - 20) / count
}
BEGIN { GAP = 12; THIN = 2; LINE = 18; BETWEEN = 46 }
{ a = node($1); b = node($2); if (a != b) reaches[a, b] = includes[a, b] = 1 }
END {
    # folders that include each other, directly or not, are one part: part[a] is the number of its first folder
    for (k = 1; k <= n; k++)
        for (a = 1; a <= n; a++)
            if ((a, k) in reaches)
                for (b = 1; b <= n; b++) if ((k, b) in reaches) reaches[a, b] = 1
    for (a = 1; a <= n; a++) {
        part[a] = a
        for (b = a - 1; b >= 1; b--) if (((a, b) in reaches) && ((b, a) in reaches)) part[a] = b
        lines[part[a]]++
        text[part[a], lines[part[a]]] = name[a]
        width[part[a]] = max(width[part[a]], length(name[a]) * 8 + 20)
    }
    for (a = 1; a <= n; a++)
        for (b = 1; b <= n; b++) if (((a, b) in includes) && part[a] != part[b]) arrow[part[a], part[b]] = 1
    for (a = 1; a <= n; a++)
        for (b = 1; b <= n; b++)
            for (k = 1; k <= n && ((a, b) in arrow); k++)
                if (part[k] == k && k != a && k != b && ((a, k) in reaches) && ((k, b) in reaches)) delete arrow[a, b]
    # rows from below: a part stands in the first row above all that it includes
    for (more = 1; more;) {
        more = 0
        for (a = 1; a <= n; a++)
            for (b = 1; b <= n; b++)
                if (((a, b) in arrow) && layer[a] < layer[b] + 1) { layer[a] = layer[b] + 1; more = 1 }
    }
    for (a = 1; a <= n; a++) rows = max(rows, layer[a] + 1)
    # folders of tools/ rise to just below those that include them, so that they stay together
    for (r = rows - 2; r >= 0; r--)
        for (a = 1; a <= n; a++) if (layer[a] == r && name[a] ~ /^tools/) {
            layer[a] = rows
            for (b = 1; b <= n; b++) if (((b, a) in arrow) && layer[b] <= layer[a]) layer[a] = layer[b] - 1
        }
    for (a = 1; a <= n; a++) if (part[a] == a) {
        box[a] = add_place(rows - layer[a], a, width[a])
        height[rows - layer[a]] = max(height[rows - layer[a]], lines[a] * LINE + 12)
    }
    for (a = 1; a <= n; a++)
        for (b = 1; b <= n; b++) if ((a, b) in arrow) {
            p = box[a]
            for (r = rows - layer[a] + 1; r < rows - layer[b]; r++) { link(p, add_place(r, 0, THIN)); p = place }
            link(p, box[b])
        }
    # the order in each row: the one with the fewest crossings among those that sweeps up and down find
    for (r = 1; r <= rows; r++) for (i = 1; i <= n_row[r]; i++) at[row[r, i]] = i
    best = crossings() + 1
    for (pass = 0; pass < 40; pass++) {
        for (i = 1; i <= rows; i++) {
            r = pass % 2 ? rows + 1 - i : i
            for (k = 1; k <= n_row[r]; k++) key[row[r, k]] = mean(row[r, k], at, pass < 20 ? (pass % 2 ? -1 : 1) : 0)
            sort_row(r)
        }
        if ((now = crossings()) < best) { best = now; for (p = 1; p <= n_places; p++) kept[p] = at[p] }
    }
    for (p = 1; p <= n_places; p++) key[p] = kept[p]
    for (r = 1; r <= rows; r++) sort_row(r)
    # coordinates
    for (r = 1; r <= rows; r++) {
        for (i = 1; i <= n_row[r]; i++) want[row[r, i]] = 0
        spread(r)
    }
    for (pass = 0; pass < 60; pass++)
        for (i = 1; i <= rows; i++) {
            r = pass % 2 ? rows + 1 - i : i
            for (k = 1; k <= n_row[r]; k++) want[row[r, k]] = mean(row[r, k], x, pass < 30 ? (pass % 2 ? -1 : 1) : 0)
            spread(r)
        }
    low = 100000
    for (p = 1; p <= n_places; p++) if (x[p] - width_of[p] / 2 < low) low = x[p] - width_of[p] / 2
    for (p = 1; p <= n_places; p++) { x[p] += 16 - low; wide = max(wide, x[p] + width_of[p] / 2 + 16) }
    top[1] = 16
    for (r = 1; r <= rows; r++) top[r + 1] = top[r] + height[r] + BETWEEN

    fill["espresso_impl"] = "#dbe9f8"
    fill["planner"] = "#dff1dd"
    fill["codecs"] = "#fbeccb"
    fill["backends"] = "#f6dcdc"
    fill["tools"] = "#e8e1f3"
    high = top[rows + 1] - BETWEEN + 16
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" ", wide, high
    printf "viewBox=\"0 0 %d %d\" ", wide, high
    print "font-family=\"sans-serif\" font-size=\"14\">"
    print "<title>The folders, each above all that it includes</title>"
    print "<defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\""
    print "markerWidth=\"8\" markerHeight=\"8\" orient=\"auto\">"
    print "<path d=\"M0 0 8 4 0 8z\" fill=\"#555\"/></marker></defs>"
    print "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
    print "<g fill=\"none\" stroke=\"#555\" stroke-width=\"1.2\">"
    for (p = 1; p <= n_places; p++) if (box_of[p])
        for (i = 1; i <= n_down[p]; i++) {
            q = down[p, i]
            from = top[row_of[p]] + height[row_of[p]] - (height[row_of[p]] - (lines[box_of[p]] * LINE + 12)) / 2
            path = sprintf("M%d %d", port(p, q, 1), from)
            start = port(p, q, 1)
            for (a = p; a; a = next_place) {
                r = row_of[q]
                end = box_of[q] ? port(q, a, 0) : x[q]
                to = top[r] + (box_of[q] ? (height[r] - (lines[box_of[q]] * LINE + 12)) / 2 : 0)
                half = top[r] - BETWEEN / 2
                path = path sprintf(" L%d %d C%d %d %d %d", start, top[r] - BETWEEN, start, half, end, half)
                path = path sprintf(" %d %d", end, box_of[q] ? top[r] - 6 : top[r])
                path = path sprintf(" L%d %d", end, box_of[q] ? to : top[r] + height[r])
                next_place = box_of[q] ? 0 : q
                start = end
                q = down[q, 1]
            }
            print "<path d=\"" path "\" marker-end=\"url(#head)\"/>"
        }
    print "</g>"
    for (p = 1; p <= n_places; p++) if (box_of[p]) {
        b = box_of[p]
        r = row_of[p]
        h = lines[b] * LINE + 12
        y = top[r] + (height[r] - h) / 2
        split(text[b, 1], root, "/")
        printf "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\" fill=\"%s\" stroke=\"#555\"/>\n",
            x[p] - width_of[p] / 2, y, width_of[p], h, fill[root[1]]
        for (i = 1; i <= lines[b]; i++)
            printf "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x[p], y + i * LINE + 1, text[b, i]
    }
    print "</svg>"
}' >"$out"
