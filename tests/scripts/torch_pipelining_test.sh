#!/usr/bin/env bash
# torch_pipelining_test.sh SOURCE BIN: plans a small network, exports the plan as a program for torchrun and trains with
# it on two Gloo ranks. The losses of three steps must be those of the undivided network, under the plan's lists and
# under one of torch's own schedules. Exits with 77, which CTest treats as skipped, if no Python has torch.
set -euo pipefail
source=$1
PATH=$2:$PATH
python=
for candidate in "$source/.venv/bin/python" python3; do
  if "$candidate" -c 'import torch.distributed.pipelining' 2>/dev/null; then python=$candidate; break; fi
done
[ -n "$python" ] || { echo "skipped: neither .venv/bin/python nor python3 has torch, scripts/setup makes the first"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore
fail() { echo "FAILED: $1"; shift; printf '%s\n' "$@"; exit 1; }

cat > network.py <<'END'
import torch

class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear0 = torch.nn.Linear(8, 8)
        self.linear1 = torch.nn.Linear(8, 8)
        self.linear1.weight = self.linear0.weight

    def forward(self, x):
        return self.linear1(self.linear0(x))

class Swapped(torch.nn.Sequential):
    def forward(self, x):
        return self.linear1(self.linear3(self.linear2(self.linear0(x))))

def layers():
    return [(f"{kind.__name__.lower()}{i}", kind(8, 8) if kind is torch.nn.Linear else kind())
            for i in range(4) for kind in (torch.nn.Linear, torch.nn.ReLU)]

def build(kind=torch.nn.Sequential):
    model = kind()
    for name, layer in layers():
        model.add_module(name, layer)
    return model

def swapped():
    return build(Swapped)

def batch():
    generator = torch.Generator().manual_seed(7)
    return torch.randn(12, 8, generator=generator), torch.randn(12, 8, generator=generator)

if __name__ == "__main__":
    torch.manual_seed(0)
    model, (x, y) = build(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")
END
{
  for i in 0 1 2 3; do
    for kind in linear relu; do
      echo "$kind$i -- Layer -- forward_compute_time=1.000, backward_compute_time=1.000, activation_size=96.000, parameter_size=0.000"
    done
  done
  printf '\t%s -- %s\n' linear0 relu0 relu0 linear1 linear1 relu1 relu1 linear2 linear2 relu2 relu2 linear3 linear3 relu3
} > graph.txt
stagecraft-import pipedream graph.txt -o graph.json
wanted=$("$python" network.py)
[ "$(grep -c '^step' <<< "$wanted")" = 3 ] || fail "the undivided network gives no losses" "$wanted"

# plan NAME OPTIONS..: plans graph.json and exports the plan into the folder NAME.
plan() {
  local name=$1
  shift
  stagecraft-plan graph.json --devices 2 -o "$name.json" "$@" 2>/dev/null
  stagecraft-export torch-pipelining "$name.json" -o "$name"
}
# train FOLDER OPTIONS..: prints the program's output, including standard error.
train() {
  local program=$1/pipeline.py
  shift
  timeout 120 "$python" -m torch.distributed.run --nproc-per-node 2 "$program" --batch network:batch \
    --loss torch.nn.functional:mse_loss --steps 3 --learning-rate 0.5 --device cpu "$@" 2>&1
}
# refusal FOLDER OPTIONS..: the same for rank 0 only, which refuses before it meets the others.
refusal() {
  local program=$1/pipeline.py
  shift
  RANK=0 WORLD_SIZE=2 timeout 120 "$python" "$program" --batch network:batch --device cpu "$@" 2>&1 || true
}
same() {
  local found
  found=$(grep '^step' <<< "$2" || true)
  [ "$found" = "$wanted" ] || fail "$1: other losses than the undivided network's" "$wanted" "-- found:" "$2"
  echo "$1: $(tail -1 <<< "$found"), as undivided"
}
refused() {
  case "$2" in *"$3"*) echo "$1: refused" ;; *) fail "$1: \"$3\" is not told" "$2" ;; esac
}

plan halves --split-at linear2 --schedule 1f1b
same "1f1b" "$(train halves --model network:build)"
same "torch's GPipe" "$(train halves --model network:build --schedule GPipe)"
# In this model the second stage begins with a function, so the first must end at its last module.
sed 's/"relu1", *//; s/\["linear2"/["view", "linear2"/; s/, "relu1"\]/]/' halves/pipeline.py > halves/end.py
mkdir end && mv halves/end.py end/pipeline.py
grep -q '\["view", "linear2"' end/pipeline.py || fail "the program's stages read otherwise" "$(grep -A3 ^STAGES halves/pipeline.py)"
plan uneven --split-at relu1 --schedule 1f1b
sed 's/"1f1b"/"zb-h1"/' uneven.json > zero.json  # planning this schedule needs weight-gradient times
stagecraft-export torch-pipelining zero.json -o zero
same "zero-bubble" "$(train zero --model network:build)"
stagecraft-plan graph.json --devices 4 --split-at linear1,linear2,linear3 -o four.json 2>/dev/null
"$python" - <<'END'
import json
plan = json.load(open("four.json"))
plan["schedule"], plan["chunks"] = "interleaved-1f1b", 2
for number, stage in enumerate(plan["stages"]):
    stage["devices"] = [number % 2]
json.dump(plan, open("looped.json", "w"))
END
stagecraft-export torch-pipelining looped.json -o looped
same "interleaved" "$(train looped --model network:build)"
same "a stage that begins at no module" "$(train end --model network:build)"
refused "another order" "$(refusal halves --model network:swapped)" \
  'torch puts parameter "linear1.weight" in stage 1, the plan in stage 0'
refused "a batch of 12" "$(sed 's/^MICROBATCHES = 4/MICROBATCHES = 5/' halves/pipeline.py > end/pipeline.py; refusal end --model network:build)" \
  'the batch has 12 samples, expected a multiple of 5 microbatches'
sed 's/\["linear0".*/["linear0"],/; s/\["linear2".*/["linear1"],/' halves/pipeline.py > end/pipeline.py
refused "tied parameters" "$(refusal end --model network:Tied)" \
  'stages [0, 1] share a parameter, linear0.weight and linear1.weight'
sed 's/\["linear0".*/["first"],/; s/\["linear2".*/["second"],/' halves/pipeline.py > end/pipeline.py
refused "no modules" "$(refusal end --model network:build)" 'stage 1 begins at "second", which is not a module of the model'
sed 's/^RANKS = 2/RANKS = 3/' halves/pipeline.py > end/pipeline.py
refused "other ranks" "$(refusal end --model network:build)" 'found 2 ranks, the plan has 3: torchrun --nproc-per-node 3'
echo passed
