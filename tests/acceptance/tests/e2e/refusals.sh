# Runs on the virtual host. Says what it expects before each step; the first that fails ends it.
set -eu
fail() { echo "FAILED: $*"; cat err 2>/dev/null || true; exit 1; }
one_line() { test "$(wc -l <err)" -eq 1 || fail "$1: not one line"; }

echo "records a host without guests"
vmscope record -o alone --duration 2 2>err || fail "alone"
vmscope report alone >report.txt || fail "report"
grep -q 'Total samples' report.txt || fail "no totals"

echo "names programs that only a container's mount namespace has, and deleted ones"
cat >spin.c <<'C'
volatile long sink;
__attribute__((noinline)) void spinning_function(void) { for (long i = 0; i < 1000000; i++) sink += i; }
int main(void) { for (;;) spinning_function(); }
C
gcc -O1 -o spin spin.c || fail "gcc"
cp spin doomed
./doomed &
doomed=$!
rm doomed
unshare -m sh -c 'mount -t tmpfs none /mnt && cp spin /mnt/contained && exec /mnt/contained' &
contained=$!
# Meanwhile: what the process that reads their files may do.
(while sleep 0.02; do
    child=$(pgrep -x vmscope-symbols) || continue
    cat /proc/$child/status >seen 2>/dev/null && grep -q 'Seccomp:.2' seen && mv seen child
done) &
watcher=$!
vmscope record -o programs --duration 4 2>err || fail "programs"
kill $doomed $contained $watcher
test -e child || fail "no child read their files"
grep -q 'NoNewPrivs:.1' child || fail "the child may gain privileges"
grep -q 'CapEff:.0000000000000000' child || fail "the child has capabilities"
grep -q 'Uid:.18790' child || fail "the child has a user's id"
for name in doomed contained; do
    vmscope report programs --process $name --format csv | grep -q spinning_function || fail "$name has no functions"
done

echo "not root"
if setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all vmscope record -o /tmp/not-there-yet-$$ --duration 1 2>err; then fail "ran without root"; fi
one_line "not root"
grep -q root err || fail "does not say root"

echo "a second record at the same time"
vmscope record -o first --duration 30 2>/dev/null &
first=$!
until test -d first.partial; do sleep 0.2; done
vmscope record -o second --duration 1 2>err || fail "two at once"
vmscope report second | grep -q 'Total samples' || fail "second has no totals"
vmscope trace record -o traced --duration 2 2>err &
traced=$!
vmscope trace record -o traced-too --duration 1 2>err2 || fail "two traces at once"
wait $traced || fail "the other trace"

echo "Ctrl-C in the middle finishes the recording"
sleep 2
kill -INT $first
wait $first || fail "interrupted record failed"
vmscope report first >/dev/null || fail "interrupted recording"

echo "killed in the middle: nothing under the final name, the partial one is readable"
vmscope record -o killed --duration 60 2>/dev/null &
victim=$!
until test -d killed.partial; do sleep 0.2; done
sleep 3
kill -KILL $victim
wait $victim || true
test ! -e killed || fail "half a recording under the final name"
vmscope report killed.partial >report.txt || fail "partial recording"
grep -q 'Total samples' report.txt || fail "partial recording without totals"

echo "a full disk"
mkdir small
mount -t tmpfs -o size=64k tmpfs small
if vmscope record -o small/r --duration 5 2>err; then fail "ran on a full disk"; fi
one_line "full disk"
grep -qi 'no space' err || fail "does not say that the disk is full"
test ! -e small/r || fail "half a recording on a full disk"
umount small

echo "a command that does not exist, a VM that does not exist"
if vmscope record -o nothing -- /nonexistent 2>err; then fail "ran nothing"; fi
grep -q nonexistent err || fail "does not name the command"
one_line "nonexistent command"
test ! -e nothing -a ! -e nothing.partial || fail "a command that could not start left a recording"

echo "a command that fails is named and its exit code passed on; one that outlives the recording is ended"
vmscope record -o failing -- sh -c 'exit 3' 2>err && code=0 || code=$?
test $code -eq 3 || fail "the failing command's exit code became $code"
grep -q 'exit status: 3' err || fail "does not say how the command ended"
cp /bin/sleep outliver
vmscope record -o outlived --duration 1 -- ./outliver 1000 2>err || fail "outliving command"
if grep -sqx outliver /proc/[0-9]*/comm; then fail "the command is still running"; fi
vmscope record -o deaf --duration 1 -- sh -c "trap '' TERM; while :; do sleep 1; done" 2>err && code=0 || code=$?
test $code -eq 1 || fail "a command that ignores SIGTERM: exit code $code"
grep -q 'still run, though it got SIGTERM: sh (' err || fail "does not name the command that goes on"
kill -9 "$(sed -n 's/.*got SIGTERM: sh (\([0-9]*\)).*/\1/p' err)"
if vmscope report alone --vm web 2>err; then fail "reported a VM that is not there"; fi
one_line "vm"

echo "no BPF program is left"
if command -v bpftool >/dev/null; then
    test -z "$(bpftool prog show | grep -E 'name (sample|find_vcpus)' || true)" || fail "a program is left"
fi
echo "all as expected"
