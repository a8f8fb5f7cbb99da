# blocks.awk: writes each block of code of the pages into the folder `out`, as PAGE-LINE.LANGUAGE (slashes of the page's
# path become dashes), and prints "PAGE LINE LANGUAGE". A block is fenced, or its lines are indented by four spaces. The
# language of an indented one is guessed: c, py, sh or text.
function language(text) {
    if (text ~ /(esp_|->)[a-z_]+\(.*;|(^|\n) *esp_config\./) return "c"
    if (text ~ /espresso\.[A-Za-z]+\(/) return "py"
    if (text ~ /(^|\n) *([A-Z_]+=[^ ]* )*(\.\/|build\/bin\/|bench\/)?(espresso|make|mpirun|srun|torchrun|gcc|cc|g\+\+|nvcc|pip|python3?|sh|bootstrap|export|printf|jq|git|truth|train|cp) /)
        return "sh"
    return "text"
}
function end() {
    if (!start) return
    if (lang == "") lang = language(block)
    if (lang == "python") lang = "py"
    name = page
    gsub("/", "-", name)
    printf "%s", block >(out "/" name "-" number[page, lang] + 1 "." lang)
    close(out "/" name "-" ++number[page, lang] "." lang)
    print page, start, lang, name "-" number[page, lang] "." lang
    start = 0
}
FNR == 1 {
    end()
    page = FILENAME
    fenced = 0
    before = ""
}
/^```/ {
    if (fenced) end()
    else {
        end()
        start = FNR
        block = ""
        lang = substr($0, 4)
    }
    fenced = !fenced
    before = "```"
    next
}
fenced { block = block $0 "\n"; next }
/^    / && (start || before == "") {
    if (!start) {
        start = FNR
        lang = block = ""
    }
    block = block substr($0, 5) "\n"
    next
}
{
    if ($0 != "" || !start) end()
    if (start) {
        blank = 1
        block = block "\n"
    }
    before = $0
}
END { end() }
