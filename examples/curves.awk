# curves.awk - rows NAME X Y [ERROR] as an SVG: a curve a name, over a logarithmic X, with a bar of an error to either side.
#   awk -v title='after 16 steps' -v x=rate -v y=loss -v most=3 -f examples/curves.awk table >picture.svg
# Names that end in + are dashed, in the colour of the name without it. Y that is no number or above `most` leaves a gap.
$3 ~ /^[0-9.]+$/ && $2 > 0 && (most == "" || $3 <= most + 0) {
    if (!($1 in seen)) { seen[$1] = ++names; called[names] = $1 }
    n++; name[n] = $1; at[n] = log($2); value[n] = $3; error[n] = $4 ~ /^[0-9.]+$/ ? $4 + 0 : 0
    if (n == 1) { left = right = at[1]; low = $3 - error[n]; high = $3 + error[n] }
    left = at[n] < left ? at[n] : left; right = at[n] > right ? at[n] : right
    low = $3 - error[n] < low ? $3 - error[n] : low; high = $3 + error[n] > high ? $3 + error[n] : high
}
function px(v) { return sprintf("%.1f", 70 + 560 * (v - left) / (right > left ? right - left : 1)) }
function py(v) { return sprintf("%.1f", 330 - 290 * (v - low) / (high > low ? high - low : 1)) }
END {
    if (!n) { print "curves.awk: no numbers" >"/dev/stderr"; exit 1 }
    split("#0072b2 #d55e00 #009e73 #cc79a7 #e69f00 #56b4e9 #000000 #f0e442", colour, " ")
    print "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 800 380' font-family='sans-serif' font-size='12'>"
    print "<path fill='#fff' d='M0 0h800v380H0z'/><path fill='none' stroke='#888' d='M70 40h560v290h-560z'/>"
    print "<text x='70' y='24' font-size='14'>" title "</text><text x='340' y='372'>" x "</text><text x='10' y='190'>" y "</text>"
    step = high > low ? 10 ^ (int(log(high - low) / log(10) + 99) - 100) : 1; step *= (high - low) / step > 20 ? 5 : (high - low) / step > 8 ? 2 : 1
    for (v = step * int(low / step + 1); v < high; v += step)
        printf "<path stroke='#ddd' d='M70 %sh560'/><text x='34' y='%.1f'>%g</text>\n", py(v), py(v) + 4, v
    for (k = -9; k <= 9; k++) for (m = 1; m <= 5; m += 1 + 2 * (m == 2)) {
        v = m * 10 ^ k
        if (log(v) >= left - 1e-9 && log(v) <= right + 1e-9)
            printf "<path stroke='#888' d='M%s 330v4'/><text x='%s' y='348' text-anchor='middle'>%g</text>\n", px(log(v)), px(log(v)), v
    }
    for (k = 1; k <= names; k++) {
        plain = called[k]; dashed = sub(/[+]$/, "", plain)
        if (!(plain in hue)) hue[plain] = colour[1 + colours++ % 8]
        points = 0; path = ""; bars = ""
        for (i = 1; i <= n; i++) if (name[i] == called[k]) { order[++points] = i }
        for (i = 1; i <= points; i++) for (m = i + 1; m <= points; m++) if (at[order[m]] < at[order[i]]) { t = order[i]; order[i] = order[m]; order[m] = t }
        for (i = 1; i <= points; i++) {
            o = order[i]
            path = path (i == 1 ? "M" : "L") px(at[o]) " " py(value[o])
            if (error[o] > 0) bars = bars "M" px(at[o]) " " py(value[o] - error[o]) "V" py(value[o] + error[o])
        }
        style = "fill='none' stroke-width='2' stroke='" hue[plain] "'" (dashed ? " stroke-dasharray='6 4'" : "")
        print "<path class='curve' " style " d='" path "'><title>" called[k] "</title></path><path stroke='" hue[plain] "' d='" bars "'/>"
        print "<path " style " d='M645 " 46 + 20 * k "h30'/><text x='682' y='" 50 + 20 * k "'>" plain (dashed ? dash : "") "</text>"
    }
    print "</svg>"
}
