// A plain annealer of whole schedules, written apart from weft's kernel: one sequence of all operations, of which every
// device runs its own in turn. A move takes an operation to another place; everything is timed anew.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace {
struct Arc { int target, distance, link; int64_t lag; };
struct Pair { int device; int64_t take, change; };
using Clock = std::chrono::steady_clock;
}

// ``sequence``: operations as block * count + micro_batch, every one behind what it waits for; the best is left there.
// Rows of ``arcs``: source, target, distance, link or -1, lag. Of ``uses``: block, device, take, change; of ``on``:
// block, device. Capacities below zero are unlimited. Returns the best makespan.
extern "C" int64_t anneal(int blocks, int count, int devices, int links, const int64_t* duration, int arc_count,
                          const int64_t* arcs, int use_count, const int64_t* uses, int on_count, const int64_t* on,
                          const int64_t* capacity, double seconds, uint64_t seed, int* sequence, int64_t* tried) {
    const int n = blocks * count;
    std::vector<std::vector<Arc>> out(blocks);
    std::vector<int> waits(n, 0);
    for (int a = 0; a < arc_count; a++) {
        const int64_t* row = arcs + 5 * a;
        out[row[0]].push_back({int(row[1]), int(row[2]), int(row[3]), row[4]});
        for (int m = int(row[2]); m < count; m++) waits[row[1] * count + m]++;
    }
    std::vector<std::vector<Pair>> of(blocks);
    for (int u = 0; u < use_count; u++) of[uses[4 * u]].push_back({int(uses[4 * u + 1]), uses[4 * u + 2], uses[4 * u + 3]});
    std::vector<std::vector<int>> where(blocks);
    for (int o = 0; o < on_count; o++) where[on[2 * o]].push_back(int(on[2 * o + 1]));

    std::vector<int64_t> ready(n), ends(n), device_free(devices), link_free(links), level(devices);
    std::vector<int> open(n), because(n), last_on(devices);
    int last = -1;
    auto timed = [&](const std::vector<int>& order) -> int64_t {  // -1: not possible
        std::fill(ready.begin(), ready.end(), 0);
        std::fill(device_free.begin(), device_free.end(), 0);
        std::fill(link_free.begin(), link_free.end(), 0);
        std::fill(level.begin(), level.end(), 0);
        std::fill(last_on.begin(), last_on.end(), -1);
        std::fill(because.begin(), because.end(), -1);
        open = waits;
        int64_t makespan = 0;
        for (int op : order) {
            if (open[op]) return -1;
            const int block = op / count, m = op % count;
            int64_t start = ready[op];
            for (int d : where[block])
                if (device_free[d] > start) { start = device_free[d]; because[op] = last_on[d]; }
            for (const Pair& pair : of[block]) {
                if (capacity[pair.device] >= 0 && level[pair.device] + pair.take > capacity[pair.device]) return -1;
                level[pair.device] += pair.change;
            }
            const int64_t end = ends[op] = start + duration[block];
            for (int d : where[block]) { device_free[d] = end; last_on[d] = op; }
            if (m + 1 < count && --open[op + 1] == 0 && ready[op + 1] < end) { ready[op + 1] = end; because[op + 1] = op; }
            for (const Arc& arc : out[block]) {
                if (m + arc.distance >= count) continue;
                int64_t begin = end;
                if (arc.link >= 0) { begin = std::max(begin, link_free[arc.link]); link_free[arc.link] = begin + arc.lag; }
                const int target = arc.target * count + m + arc.distance;
                open[target]--;
                if (begin + arc.lag > ready[target]) { ready[target] = begin + arc.lag; because[target] = op; }
            }
            if (end > makespan) { makespan = end; last = op; }
        }
        return makespan;
    };
    for (int b = 0; b < blocks; b++)
        for (int m = 1; m < count; m++) waits[b * count + m]++;  // micro-batches of a block in turn

    std::mt19937_64 random(seed);
    auto below = [&](int limit) { return int(random() % uint64_t(limit)); };
    auto unit = [&] { return std::uniform_real_distribution<>(0, 1)(random); };
    std::vector<int> current(sequence, sequence + n), best = current, next;
    int64_t value = timed(current), least = value;
    if (value < 0) return -1;
    std::vector<int> critical;
    auto walk = [&] { critical.clear(); for (int op = last; op >= 0; op = because[op]) critical.push_back(op); };
    walk();
    const auto begun = Clock::now();
    const double hot = 0.004 * double(value), cold = 0.00002 * double(value);
    *tried = 0;
    for (double part = 0; part < 1; ) {
        if (*tried % 64 == 0) part = std::chrono::duration<double>(Clock::now() - begun).count() / seconds;
        const double lap = std::fmod(4 * part, 1.0);  // four times from hot to cold, each from the best
        if (*tried % 20000 == 0 && lap < 0.02) { current = best; value = timed(current); walk(); }
        ++*tried;
        const int op = unit() < 0.7 ? critical[below(int(critical.size()))] : current[below(n)];
        const int from = int(std::find(current.begin(), current.end(), op) - current.begin());
        const int reach = 1 + int(std::exp(unit() * std::log(double(n) / 3 + 2)));
        const int to = std::clamp(from + (random() & 1 ? reach : -reach), 0, n - 1);
        if (to == from) continue;
        next = current;
        if (to > from) std::rotate(next.begin() + from, next.begin() + from + 1, next.begin() + to + 1);
        else std::rotate(next.begin() + to, next.begin() + from, next.begin() + from + 1);
        const int64_t found = timed(next);
        const double heat = hot * std::pow(cold / hot, lap);
        if (found < 0 || double(found - value) > -heat * std::log(unit() + 1e-300)) continue;
        current.swap(next);
        value = found;
        walk();
        if (value < least) { least = value; best = current; }
    }
    std::copy(best.begin(), best.end(), sequence);
    return least;
}
