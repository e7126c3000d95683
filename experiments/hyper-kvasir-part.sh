#!/bin/sh
# Every run behind the tables of the README: all methods with seed 0, and three methods and the eight rows of the
# ablation with three seeds.
# Results go into docs/results; a run that is there already is not repeated. Five to fourteen minutes a run on one core.
set -eu
export HYPER_KVASIR_PART="${HYPER_KVASIR_PART:?set it to the folder of the subset; see hyper-kvasir-part.toml}"
cd "$(dirname "$0")/.."
run() {
    endocil run experiments/hyper-kvasir-part.toml --ledger docs/results --set run.threads=1 "$@"
}
for method in ewc lwf bic wa der memo mrfa dgr foster; do
    run --set seed=0 --set method.name=$method
done
run --set seed=0 --set method.name=foster --set method.evaluate=student
for seed in 0 1 2; do
    for method in finetune joint icarl; do
        run --set seed=$seed --set method.name=$method
    done
    for select in mean mmd; do
        for loss in cross_entropy prior_regularized; do
            for gradients in plain calibrated; do
                run --set seed=$seed --set memory.select=$select --set method.loss=$loss --set method.gradients=$gradients
            done
        done
    done
done
endocil ledger insert README.md docs/evidence.md
