# Includes run downwards only (tests/floors has the table of rooms).

bats_require_minimum_version 1.5.0

setup() { root=$BATS_TEST_DIRNAME/..; }

@test "no include in lib/ or kernels/ runs upwards" {
    run -0 "$root/tests/floors"
    [ -z "$output" ]
}

@test "an include that runs upwards is found" {
    copy=$BATS_TEST_TMPDIR/copy
    mkdir "$copy"
    cp -r "$root/lib" "$root/kernels" "$copy"
    run -0 "$root/tests/floors" "$copy"
    sed -i '1a #include "train/run.h"' "$copy/lib/base/err.c"
    run -1 "$root/tests/floors" "$copy"
    [[ $output == 'lib/base/err.c:2: base may not include "train/run.h"' ]]
    cp "$root/lib/base/err.c" "$copy/lib/base"
    sed -i '1a #include "gpu.h"' "$copy/lib/ops/ops.h"
    run -1 "$root/tests/floors" "$copy"
    [[ $output == 'lib/ops/ops.h:2: ops may not include "gpu.h"' ]]
    cp "$root/lib/ops/ops.h" "$copy/lib/ops"
    sed -i '1a #include "ops/ops.h"' "$copy/lib/recipe/check.c"
    run -1 "$root/tests/floors" "$copy"
    [[ $output == 'lib/recipe/check.c:2: recipe may not include "ops/ops.h"' ]]
}
