// List schedules, compiled: one pass through time, in which a free device starts what is most urgent of what it may.
// Each function does what a Python one does, decision by decision, and gives the same numbers to the bit:
// `weft_by_width` solver/baselines/rivals/greedy.py, `weft_by_priority` .../lib/priority_rule.py, `weft_building_block`
// .../lib/building_block.py. These say what each step means, and run where there is no compiler.
// weft/solver/orders/lists.py calls the functions at the end, and weft/solver/timing.py `weft_times`, which does what
// `time_orders` there says.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using Index = std::int32_t;
using Amount = std::int64_t;
constexpr double kNever = std::numeric_limits<double>::infinity();
template <class T> using Soonest = std::priority_queue<T, std::vector<T>, std::greater<T>>;

// A block problem and how many micro-batches run; see lists.py for the meaning of each field.
struct Graph {
  Index blocks, micro_batches, devices, links, pools, dependencies;
  const double* duration;
  const Index* on_begin;
  const Index* on;
  const Amount* take;
  const Amount* change;
  const Amount* room;
  const Index* arc_begin;
  const Index* arc_target;
  const Index* arc_distance;
  const Index* arc_link;
  const double* arc_lag;
  const Amount* pool_room;
  const Index* pool_member;
  const Amount* pool_take;
  const Amount* pool_given;
};

// Where the operations of each device are written, one after another.
class Rows {
 public:
  Rows(Index devices, const Index* begin, Index* block, Index* micro_batch)
      : next_(begin, begin + devices), block_(block), micro_batch_(micro_batch) {}
  void add(Index device, Index block, Index micro_batch) {
    const Index at = next_[device]++;
    block_[at] = block, micro_batch_[at] = micro_batch;
  }

 private:
  std::vector<Index> next_;
  Index* block_;
  Index* micro_batch_;
};

double largest(const std::vector<double>& values) {
  double most = 0.0;
  for (double value : values) most = std::max(most, value);
  return most;
}

// What both passes over any block graph share: what has arrived, and what a start changes.
class Passing {
 public:
  Passing(const Graph& graph, Rows rows, const Index* rank = nullptr)
      : g(graph), n(graph.micro_batches), rank(rank), rows_(std::move(rows)), waits(g.blocks * std::size_t(n), 0),
        arrival(waits.size(), 0.0), following(g.blocks, 0), link_free(g.links, 0.0), free(g.devices, 0.0),
        levels(g.devices, 0), on_device(g.devices), looked_at(g.devices, 0), all_open(g.pools > 0) {
    for (Index i = 0; i < g.blocks; ++i) {
      all_open = all_open || g.on_begin[i + 1] - g.on_begin[i] > 1;
      for (Index k = g.on_begin[i]; k < g.on_begin[i + 1]; ++k) on_device[g.on[k]].push_back({i, k});
    }
    for (Index a = 0; a < g.arc_begin[g.blocks]; ++a)
      for (Index m = g.arc_distance[a]; m < n; ++m) ++waits[at(g.arc_target[a], m)];
    for (Index d = 0; d < g.devices; ++d) times.push({0.0, d});
  }

 protected:
  const Graph& g;
  const Index n;
  const Index* rank;  // of blocks, or null where all are equal
  Rows rows_;
  std::vector<Index> waits;
  std::vector<double> arrival;
  std::vector<Index> following;  // each block's next micro-batch
  std::vector<double> link_free, free;
  std::vector<Amount> levels;
  Soonest<std::pair<double, Index>> times;  // when something ends on a device or arrives there
  std::vector<std::vector<std::pair<Index, Index>>> on_device;  // blocks, and their places in g.on
  std::vector<Index> always, touched;  // devices to look at: at any time, and now
  std::vector<char> looked_at;         // whether a device is one of `always`
  bool all_open;                       // what happens on a device changes what may start on others

  std::size_t at(Index block, Index m) const { return block * std::size_t(n) + m; }
  double next_time() {
    const double now = times.top().first;
    touched = always;
    for (; !times.empty() && times.top().first == now; times.pop()) {
      const Index d = times.top().second;
      if (!looked_at[d] && (touched.empty() || touched.back() != d)) touched.push_back(d);
    }
    return now;
  }
  // Blocks whose next micro-batch has all it waits for, by rank; not where nothing ends or arrives now.
  std::vector<std::pair<Index, Index>> candidates() const {
    std::vector<std::pair<Index, Index>> found;
    auto look = [&](Index i) {
      if (following[i] < n && waits[at(i, following[i])] == 0) found.push_back({rank ? rank[i] : 0, i});
    };
    for (Index i = 0; all_open && i < g.blocks; ++i) look(i);
    if (!all_open)
      for (Index d : touched) for (auto [i, _] : on_device[d]) look(i);
    std::sort(found.begin(), found.end());
    return found;
  }
  double start(Index i, double now) {
    const Index m = following[i]++;
    const double end = now + g.duration[i];
    for (Index k = g.on_begin[i]; k < g.on_begin[i + 1]; ++k) {
      rows_.add(g.on[k], i, m);
      free[g.on[k]] = end;
      levels[g.on[k]] += g.change[k];
      times.push({end, g.on[k]});
    }
    for (Index a = g.arc_begin[i]; a < g.arc_begin[i + 1]; ++a) {
      const Index later = m + g.arc_distance[a], target = g.arc_target[a], link = g.arc_link[a];
      if (later >= n) continue;
      const double begin = link < 0 ? end : std::max(end, link_free[link]);
      const double there = begin + g.arc_lag[a];
      if (link >= 0) link_free[link] = there;
      --waits[at(target, later)];
      arrival[at(target, later)] = std::max(arrival[at(target, later)], there);
      times.push({there, g.on[g.on_begin[target]]});
    }
    return end;
  }
};

// At most so many micro-batches (or parts of them) are in flight at once.
class ByWidth : public Passing {
 public:
  ByWidth(const Graph& graph, Rows rows, const Index* rank, Index width, const Index* part, Index parts)
      : Passing(graph, std::move(rows), rank), width_(width), part_(part), size_(parts, 0),
        started_(parts * std::size_t(graph.micro_batches), 0), pool_levels_(graph.pools, 0) {
    for (Index i = 0; i < g.blocks; ++i) ++size_[part_[i]];
    std::vector<char> follows(g.blocks, 0);  // another block of its micro-batch, which is in flight then
    for (Index i = 0; i < g.blocks; ++i)
      for (Index a = g.arc_begin[i]; a < g.arc_begin[i + 1]; ++a)
        if (g.arc_distance[a] == 0 && part_[i] == part_[g.arc_target[a]]) follows[g.arc_target[a]] = 1;
    for (Index d = 0; d < g.devices; ++d)
      for (auto [i, _] : on_device[d])
        if (!follows[i] && !looked_at[d]) looked_at[d] = 1, always.push_back(d);
  }
  double run() {
    for (std::int64_t left = std::int64_t(g.blocks) * n; left > 0;) {
      if (times.empty()) return -1.0;
      const double now = next_time();
      for (; !gives_.empty() && std::get<0>(gives_.top()) <= now; gives_.pop())
        pool_levels_[std::get<1>(gives_.top())] -= std::get<2>(gives_.top());
      for (auto [_, i] : candidates()) {
        if (!may_start(i, now)) continue;
        Index& started = started_[part_[i] * std::size_t(n) + following[i]];
        in_flight_ += (started == 0) - (started == size_[part_[i]] - 1);
        ++started, --left;
        const double end = start(i, now);
        for (Index p = 0; p < g.pools; ++p) {
          const std::size_t k = p * std::size_t(g.blocks) + i;
          if (!g.pool_member[k]) continue;
          pool_levels_[p] += g.pool_take[k];
          gives_.push({end, p, g.pool_given[k]});
        }
      }
    }
    return largest(free);
  }

 private:
  Index width_, in_flight_ = 0;
  const Index* part_;
  std::vector<Index> size_, started_;
  std::vector<Amount> pool_levels_;
  Soonest<std::tuple<double, Index, Amount>> gives_;

  bool may_start(Index i, double now) const {
    const Index m = following[i];
    if (arrival[at(i, m)] > now) return false;
    if (in_flight_ >= width_ && started_[part_[i] * std::size_t(n) + m] == 0) return false;
    for (Index k = g.on_begin[i]; k < g.on_begin[i + 1]; ++k)
      if (free[g.on[k]] > now || levels[g.on[k]] + g.take[k] > g.room[g.on[k]]) return false;
    for (Index p = 0; p < g.pools; ++p) {
      const std::size_t k = p * std::size_t(g.blocks) + i;
      if (g.pool_member[k] && pool_levels_[p] + g.pool_take[k] > g.pool_room[p]) return false;
    }
    return true;
  }
};

// Urgent is what has the least key; nothing is overtaken that would not fit afterwards.
class ByPriority : public Passing {
 public:
  ByPriority(const Graph& graph, Rows rows, const Index* filler, const double* offset, double interval, double lead,
             bool reserve)
      : Passing(graph, std::move(rows)), filler_(filler), offset_(offset), interval_(interval), lead_(lead),
        reserve_(reserve) {}
  double run() {
    while (!times.empty()) start_what_can(next_time());
    for (Index m : following)
      if (m != n) return -1.0;
    return largest(free);
  }

 private:
  const Index* filler_;
  const double* offset_;
  double interval_, lead_;
  bool reserve_;
  mutable std::vector<std::pair<double, Index>> urgent_;

  bool many(Index i) const { return g.on_begin[i + 1] - g.on_begin[i] > 1; }
  void start_what_can(double now) {
    std::vector<std::tuple<Index, double, Index>> ready;
    for (auto [_, i] : candidates()) {
      const Index m = following[i];
      if (arrival[at(i, m)] <= now && (free[g.on[g.on_begin[i]]] <= now || (reserve_ && many(i))))
        ready.push_back({filler_[i], offset_[i] + m * interval_, i});
    }
    std::sort(ready.begin(), ready.end());
    std::vector<char> kept(g.devices, 0);
    for (auto [_, key, i] : ready) {
      bool idle = true, taken = false;
      for (Index k = g.on_begin[i]; k < g.on_begin[i + 1]; ++k)
        idle = idle && free[g.on[k]] <= now, taken = taken || kept[g.on[k]];
      if (!(idle || (reserve_ && many(i))) || taken || !fits(i, key)) continue;
      if (idle) {
        start(i, now);
      } else {
        for (Index k = g.on_begin[i]; k < g.on_begin[i + 1]; ++k) kept[g.on[k]] = 1;
      }
    }
  }
  bool fits(Index i, double key) const {
    for (Index k = g.on_begin[i]; k < g.on_begin[i + 1]; ++k) {
      const Index d = g.on[k];
      Amount level = levels[d];
      if (level + g.take[k] > g.room[d]) return false;
      urgent_.clear();
      double least = kNever;
      for (auto [j, place] : on_device[d]) {
        double other = offset_[j] + following[j] * interval_;
        for (Index m = following[j]; other < key && m < n; ++m, other += interval_) {
          urgent_.push_back({other, place});
          least = std::min(least, other);
        }
      }
      if (urgent_.empty()) continue;
      if (key > least + lead_ && !filler_[i]) return false;
      if (g.room[d] == std::numeric_limits<Amount>::max() || g.change[k] <= 0) continue;
      std::sort(urgent_.begin(), urgent_.end());  // places rise with blocks
      level += g.change[k];
      for (auto [_, place] : urgent_) {
        if (level + g.take[place] > g.room[d]) return false;
        level += g.change[place];
      }
    }
    return true;
  }
};

// A training pipeline as steps in a chain, each with a weight gradient behind it or none, and a building block.
struct Chain {
  Index steps, devices, micro_batches;
  const Index* device;
  const Index* has_filler;
  const double* duration;
  const double* filler_duration;
  const double* lag;
  const Amount* take;
  const Amount* change;
  const Amount* filler_take;
  const Amount* filler_change;
  const Amount* room;
  const double* offset;
  double interval, lead, patience;
};

class RepeatedBlock {
 public:
  RepeatedBlock(const Chain& chain, Rows rows)
      : c(chain), n(chain.micro_batches), rows_(std::move(rows)), mine_(c.devices), following_(c.steps, 0),
        key_(c.offset, c.offset + c.steps), next_arrival_(c.steps, kNever), arrival_(c.steps), earliest_(c.steps),
        early_free_(c.devices, 0.0), free_(c.devices, 0.0), level_(c.devices, 0), waiting_(c.devices),
        first_waiting_(c.devices, 0), waiting_change_(c.devices, 0) {
    for (Index i = 0; i < c.steps; ++i) mine_[c.device[i]].push_back(i);
    next_arrival_[0] = 0.0;
    arrival_[0].assign(n, 0.0), earliest_[0].assign(n, 0.0);
    for (Index d = 0; d < c.devices; ++d) events_.push({0.0, d});
  }
  // The makespan (-1: stuck), and the time between micro-batches in the second half.
  std::pair<double, double> run() {
    while (!events_.empty()) {
      const std::pair<double, Index> event = events_.top();
      while (!events_.empty() && events_.top() == event) events_.pop();
      if (free_[event.second] <= event.first) decide(event.second, event.first);
    }
    for (Index m : following_)
      if (m < n) return {-1.0, 0.0};
    for (Index d = 0; d < c.devices; ++d)
      if (first_waiting_[d] < waiting_[d].size()) return {-1.0, 0.0};
    const std::vector<double>& middle = earliest_[c.steps / 2];
    const Index half = n / 2;
    return {largest(early_free_), n - 1 > half ? (middle[n - 1] - middle[half]) / (n - 1 - half) : 0.0};
  }

 private:
  const Chain& c;
  const Index n;
  Rows rows_;
  std::vector<std::vector<Index>> mine_;
  std::vector<Index> following_;
  std::vector<double> key_, next_arrival_;
  std::vector<std::vector<double>> arrival_, earliest_;
  std::vector<double> early_free_, free_;
  std::vector<Amount> level_;
  std::vector<std::vector<std::pair<Index, Index>>> waiting_;
  std::vector<std::size_t> first_waiting_;
  std::vector<Amount> waiting_change_;
  Soonest<std::pair<double, Index>> events_;
  std::vector<std::pair<double, Index>> ready_, overtaken_;

  void decide(Index d, double now) {
    double least = kNever, soonest = kNever;
    ready_.clear();
    for (Index i : mine_[d]) {
      least = std::min(least, key_[i]);
      if (next_arrival_[i] <= now) {
        ready_.push_back({key_[i], i});
      } else {
        soonest = std::min(soonest, next_arrival_[i]);
      }
    }
    std::sort(ready_.begin(), ready_.end());
    for (auto [key, i] : ready_) {
      if (key > least + c.lead) break;
      if (level_[d] + c.take[i] <= c.room[d] && (key == least || may_overtake(d, i, key))) {
        start(d, i, now);
        return;
      }
    }
    if (first_waiting_[d] == waiting_[d].size()) return;
    const auto [i, m] = waiting_[d][first_waiting_[d]];
    const double length = c.filler_duration[i];
    if (ready_.empty() && soonest - now < c.patience * length) return;
    if (level_[d] + c.filler_take[i] > c.room[d]) return;
    ++first_waiting_[d];
    level_[d] += c.filler_change[i];
    waiting_change_[d] -= c.filler_change[i];
    early_free_[d] += length;
    rows_.add(d, c.steps + i, m);
    free_[d] = now + length;
    events_.push({free_[d], d});
  }
  void start(Index d, Index i, double now) {
    const Index m = following_[i]++, next = m + 1;
    key_[i] = next < n ? c.offset[i] + next * c.interval : kNever;
    next_arrival_[i] = std::size_t(next) < arrival_[i].size() ? arrival_[i][next] : kNever;
    level_[d] += c.change[i];
    if (c.has_filler[i]) {
      waiting_[d].push_back({i, m});
      waiting_change_[d] += c.filler_change[i];
    }
    early_free_[d] = std::max(earliest_[i][m], early_free_[d]) + c.duration[i];
    rows_.add(d, i, m);
    const double end = free_[d] = now + c.duration[i];
    events_.push({end, d});
    if (i + 1 == c.steps) return;
    const double there = end + c.lag[i + 1];
    arrival_[i + 1].push_back(there);
    if (following_[i + 1] == m) next_arrival_[i + 1] = there;
    earliest_[i + 1].push_back(early_free_[d] + c.lag[i + 1]);
    events_.push({there, c.device[i + 1]});
  }
  bool may_overtake(Index d, Index i, double key) {
    const Amount now = level_[d] + waiting_change_[d];
    Amount level = now + c.change[i] + (c.has_filler[i] ? c.filler_change[i] : 0);
    if (level <= now) return true;
    overtaken_.clear();
    for (Index j : mine_[d]) {
      if (j == i) continue;
      double other = key_[j];
      for (Index m = following_[j]; m < n && other < key; ++m, other += c.interval) overtaken_.push_back({other, j});
    }
    std::sort(overtaken_.begin(), overtaken_.end());
    for (auto [_, j] : overtaken_) {
      if (level + c.take[j] > c.room[d]) return false;
      level += c.change[j] + (c.has_filler[j] ? c.filler_change[j] : 0);
    }
    return true;
  }
};

}  // namespace

extern "C" {
// Each returns the makespan, or -1 where memory leaves it stuck.
double weft_by_width(const Graph* graph, const Index* begin, Index* block, Index* micro_batch, const Index* rank,
                     Index width, const Index* part, Index parts) {
  return ByWidth(*graph, Rows(graph->devices, begin, block, micro_batch), rank, width, part, parts).run();
}
double weft_by_priority(const Graph* graph, const Index* begin, Index* block, Index* micro_batch, const Index* filler,
                        const double* offset, double interval, double lead, Index reserve) {
  return ByPriority(*graph, Rows(graph->devices, begin, block, micro_batch), filler, offset, interval, lead,
                    reserve != 0).run();
}
double weft_building_block(const Chain* chain, const Index* begin, Index* block, Index* micro_batch, double* pace) {
  const auto [makespan, found] = RepeatedBlock(*chain, Rows(chain->devices, begin, block, micro_batch)).run();
  *pace = found;
  return makespan;
}
// Longest paths over `from[e]` -> `to[e]` and the arcs, from what `start` and `free` (of links) hold on; the first
// operation that waits in a circle, or -1.
std::int64_t weft_times(Index blocks, Index n, const double* duration, const Index* arc_begin, const Index* arc_target,
                        const Index* arc_distance, const Index* arc_link, const double* arc_lag, std::int64_t edges,
                        const Index* from, const Index* to, double* free, double* start) {
  const std::size_t total = static_cast<std::size_t>(blocks) * n;
  std::vector<Index> waits(total, 0), ready;
  std::vector<std::int64_t> first(total, -1), next(edges);
  for (std::int64_t e = edges; e-- > 0; first[from[e]] = e, ++waits[to[e]]) next[e] = first[from[e]];
  for (Index a = 0; a < arc_begin[blocks]; ++a)
    for (Index m = arc_distance[a]; m < n; ++m) ++waits[arc_target[a] * n + m];
  ready.reserve(total);
  for (std::size_t i = 0; i < total; ++i) if (waits[i] == 0) ready.push_back(static_cast<Index>(i));
  auto arrives = [&](Index j, double at) {
    start[j] = std::max(start[j], at);
    if (--waits[j] == 0) ready.push_back(j);
  };
  for (std::size_t k = 0; k < ready.size(); ++k) {
    const Index i = ready[k], b = i / n, m = i % n;
    const double end = start[i] + duration[b];
    for (std::int64_t e = first[i]; e >= 0; e = next[e]) arrives(to[e], end);
    for (Index a = arc_begin[b]; a < arc_begin[b + 1]; ++a) {
      if (m + arc_distance[a] >= n) continue;
      double at = end + arc_lag[a];
      if (arc_link[a] >= 0) free[arc_link[a]] = at = std::max(end, free[arc_link[a]]) + arc_lag[a];
      arrives(arc_target[a] * n + m + arc_distance[a], at);
    }
  }
  const auto stuck = std::find_if(waits.begin(), waits.end(), [](Index left) { return left != 0; });
  return stuck == waits.end() ? -1 : stuck - waits.begin();
}
}
