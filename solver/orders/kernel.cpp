// Whole schedules as orders: times, memory and local search, compiled. weft/solver/orders/twin.py is the same in Python
// and says what each step means; tests compare the two decision by decision. There is no Python in here but an empty
// module: weft/solver/orders/native.py calls the functions at the end through ctypes, so that one binary serves every
// Python of a platform.
//
// Numbers: operation (block b, micro-batch m) is the node b * N + m; the transfer of the k-th linked arc out of
// micro-batch m is the node (B + k) * N + m. Times are ticks, amounts units of memory.
//
// A move replaces segments of rows. What changes is found without timing everything again: nodes are kept in a
// topological order; the part of it between the first and the last node of the segments is sorted anew (or is a cycle),
// and behind it a node is timed again only where one that it waits for has changed.
//
// A span or a period is the largest ratio of ticks to periods over the cycles of all that waits, rounded up to a tick.
// It is found anew for every move: longest paths at a value, or a cycle that asks for a larger one. For a period there
// is one operation of each block, and each row says which micro-batch of it a period has there (its offset).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <queue>
#include <tuple>
#include <vector>

namespace {

using Time = std::int64_t;
using Node = std::int32_t;

// Raised with every change that the Python side can see; control/compiled.py refuses a binary of another version.
constexpr int kVersion = 6;
constexpr Time kNever = INT64_MAX / 4;
enum Objective : std::int32_t { kMakespan, kSpan, kPeriod };

struct Arc { std::int32_t source, target, distance, link; };

// What the caller describes a problem with; see native.py for the meaning of each field.
struct Instance {
  std::int32_t blocks, micro_batches, rows, memories, arcs, links, pools, objective;
  const Time* duration;
  const std::int32_t* row_begin;
  const std::int32_t* row_block;
  const Arc* arc;
  const Time* lag;
  const std::int32_t* link_row;
  const std::int32_t* memory_row;
  const Time* capacity;
  const Time* take;
  const Time* change;
  const Time* pool_capacity;
  const Time* pool_take;
  const Time* pool_given;
};

// SplitMix64 (Steele, Lea and Flood 2014).
struct Random {
  std::uint64_t state;
  std::uint64_t next() {
    std::uint64_t z = (state += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  std::int32_t below(std::int32_t n) { return static_cast<std::int32_t>((next() >> 33) % static_cast<std::uint64_t>(n)); }
  double unit() { return (static_cast<double>(next() >> 11) + 1.0) * 0x1.0p-53; }  // above 0, at most 1
};

struct Segment { std::int32_t row, from; std::vector<Node> before; };

class Kernel {
 public:
  explicit Kernel(const Instance& given);
  bool set(const Node* rows);
  Time makespan() const { return makespan_; }
  double overflow() const { return overflow_; }
  Time best() const { return best_; }
  void best_rows(Node* out) const { std::copy(best_seq_.begin(), best_seq_.end(), out); }
  void starts(Time* out) const { std::copy(start_.begin(), start_.begin() + operations_, out); }
  void back_to_best();
  std::int64_t anneal(std::int64_t evaluations, double hot, double cold, double penalty, std::uint64_t seed);

 private:
  struct Place { std::int32_t row, offset; };  // where a block's micro-batches note their positions in a row

  // The problem.
  std::int32_t B_, N_, R_, operations_, nodes_;
  bool cyclic_, ring_;                         // not the makespan; the period
  bool several_ = false;                       // some blocks are in several rows, and times say where each row has its turn
  Time least_ = 0, most_ = 0;                  // no span or period is below, and none is above
  std::vector<Time> duration_, lag_;
  std::vector<Arc> arcs_;
  std::vector<std::int32_t> linked_;           // per arc: its number among the linked ones, or -1
  std::vector<std::int32_t> arc_of_link_;      // per linked arc: its number among all
  std::vector<std::vector<std::int32_t>> in_, out_;  // per block: arcs
  std::vector<std::vector<std::int32_t>> sent_;      // per block: linked arcs out of it, in order
  std::vector<std::vector<Place>> places_;     // per block: the rows that it is in
  std::vector<std::int32_t> begin_;            // per row: where it begins in seq_
  std::vector<std::int32_t> link_row_;
  struct Memory { std::int32_t row; Time capacity; std::vector<Time> take, change; };
  std::vector<Memory> memories_;
  std::vector<std::vector<std::int32_t>> memories_of_;  // per row
  struct Pool { Time capacity; std::vector<Time> take, given; };
  std::vector<Pool> pools_;
  std::vector<Time> rest_;                     // per block: the longest path from its start through its own micro-batch

  // The orders and their times.
  std::vector<Node> seq_;                      // all rows, one behind the other
  std::vector<std::int32_t> pos_;              // per place and micro-batch: index into seq_
  std::vector<Node> sent_before_, sent_after_; // per transfer: its neighbours on its link, or -1
  std::vector<Time> start_;
  std::vector<Node> topo_;
  std::vector<std::int32_t> at_;               // per node: its index in topo_
  Time makespan_ = kNever;                     // or the span, or the period
  double overflow_ = 0;
  std::vector<std::int32_t> offset_;           // by place: the micro-batch of the block in a period; 0 but for periods

  // With cycles: what waits for what, `height` periods later; how each node got its time, and what asked for more.
  struct Edge { Node from, to; std::int32_t height, row; Time weight; };
  std::vector<Edge> edges_;
  std::vector<Node> in_time_, link_first_;
  std::vector<std::int32_t> by_, seen_, cycle_, old_offset_;
  std::int32_t walk_ = 0;
  std::vector<Node> old_seq_;

  // The best orders, and what a move may have to take back.
  Time best_ = kNever;
  std::vector<Node> best_seq_;
  std::vector<Segment> undo_;
  std::vector<std::pair<Node, Time>> old_start_;
  std::vector<Node> old_topo_;
  std::int32_t old_topo_from_ = 0;
  double old_overflow_ = 0;
  std::vector<std::uint64_t> dirty_;
  std::vector<std::int32_t> waits_;
  std::vector<Node> queue_;
  std::vector<Node> cause_;                    // with pools: whose end made room for an operation, or -1

  // The critical path, from its end: operations, each with the row in which its predecessor on the path stands.
  struct Step { Node node; std::int32_t row; };
  std::vector<Step> path_;
  std::vector<std::int32_t> critical_;         // indices of steps that a row leads to
  bool path_known_ = false;

  Time length(Node v) const { return v < operations_ ? duration_[v / N_] : lag_[arc_of_link_[v / N_ - B_]]; }
  Node transfer(std::int32_t arc, std::int32_t m) const { return (B_ + linked_[arc]) * N_ + m; }
  template <class F> void before(Node v, F f) const;  // f(node, when it lets v start)
  template <class F> void after(Node v, F f) const;
  Time earliest(Node v) const { Time t = 0; before(v, [&](Node, Time at) { t = std::max(t, at); }); return t; }
  void note_positions(std::int32_t from, std::int32_t to, std::int32_t row);
  void relink(std::int32_t row, std::int32_t from, std::int32_t to, const std::vector<Node>& was);
  void link_all();
  bool sort_all();
  bool sent(std::int32_t arc, std::int32_t m) const { return ring_ || m + arcs_[arc].distance < N_; }
  bool exists(Node v) const { return v < operations_ || sent(arc_of_link_[v / N_ - B_], v % N_); }
  std::int32_t place(Node v, std::int32_t row) const;
  void by_time();
  void gather();
  bool settle(Time value);
  bool cycles(Time limit);
  void turn(std::int32_t row, std::int32_t first);
  void keep_if_best();
  bool simulate(Time limit);
  Time latest_end() const;
  double excess(const Memory& memory, std::int32_t from, std::int32_t to, Time level) const;
  double total_overflow() const;
  void replace(std::int32_t row, std::int32_t from, const std::vector<Node>& now);
  bool swap_runs(std::int32_t row, std::int32_t a, std::int32_t mid, std::int32_t b);
  bool fix_other_rows(std::int32_t row, std::int32_t a, std::int32_t mid, std::int32_t b);
  bool time_again(Time limit);
  void take_back();
  void forget() { undo_.clear(); old_start_.clear(); old_topo_.clear(); }
  void find_path();
  bool propose(Random& random);
  bool shift(Node v, std::int32_t row, Random& random);
  bool shared(std::int32_t a, std::int32_t mid, std::int32_t b) const;
};

Kernel::Kernel(const Instance& g)
    : B_(g.blocks), N_(g.micro_batches), R_(g.rows), operations_(g.blocks * g.micro_batches), nodes_(0),
      cyclic_(g.objective != kMakespan), ring_(g.objective == kPeriod),
      duration_(g.duration, g.duration + g.blocks), lag_(g.lag, g.lag + g.arcs), arcs_(g.arc, g.arc + g.arcs),
      linked_(g.arcs, -1), in_(g.blocks), out_(g.blocks), sent_(g.blocks), places_(g.blocks), begin_(g.rows + 1),
      link_row_(g.link_row, g.link_row + g.links), memories_of_(g.rows) {
  for (std::int32_t a = 0; a < g.arcs; ++a) {
    in_[arcs_[a].target].push_back(a);
    out_[arcs_[a].source].push_back(a);
    if (arcs_[a].link < 0) continue;
    linked_[a] = static_cast<std::int32_t>(arc_of_link_.size());
    arc_of_link_.push_back(a);
    sent_[arcs_[a].source].push_back(a);
  }
  nodes_ = (B_ + static_cast<std::int32_t>(arc_of_link_.size())) * N_;
  std::int32_t places = 0;
  for (std::int32_t r = 0; r < R_; ++r) {
    begin_[r] = places;
    for (std::int32_t k = g.row_begin[r]; k < g.row_begin[r + 1]; ++k, places += N_) places_[g.row_block[k]].push_back({r, places});
  }
  begin_[R_] = places;
  for (const std::vector<Place>& of : places_) several_ = several_ || (of.size() > 1 && !ring_);
  for (std::int32_t k = 0; k < g.memories; ++k) {
    const Time *take = g.take + static_cast<std::int64_t>(k) * B_, *change = g.change + static_cast<std::int64_t>(k) * B_;
    memories_.push_back({g.memory_row[k], g.capacity[k], {take, take + B_}, {change, change + B_}});
    memories_of_[g.memory_row[k]].push_back(k);
  }
  for (std::int32_t k = 0; k < g.pools; ++k) {
    const Time *take = g.pool_take + static_cast<std::int64_t>(k) * B_, *given = g.pool_given + static_cast<std::int64_t>(k) * B_;
    pools_.push_back({g.pool_capacity[k], {take, take + B_}, {given, given + B_}});
  }
  rest_ = duration_;
  for (std::int32_t round = 0, changed = 1; changed && round <= B_; ++round) {
    changed = 0;
    for (std::int32_t a = 0; a < g.arcs; ++a) {
      const Time through = duration_[arcs_[a].source] + lag_[a] + rest_[arcs_[a].target];
      if (arcs_[a].distance == 0 && through > rest_[arcs_[a].source]) rest_[arcs_[a].source] = through, changed = 1;
    }
  }
  std::vector<Time> carried(g.links, 0);
  for (std::int32_t a = 0; a < g.arcs; ++a) {
    most_ += lag_[a] * N_;
    if (arcs_[a].link >= 0) carried[arcs_[a].link] += lag_[a] * (ring_ ? 1 : std::max(0, N_ - arcs_[a].distance));
  }
  for (Time load : carried) least_ = std::max(least_, load);
  for (Time duration : duration_) most_ += duration * N_;
  for (std::int32_t r = 0; r < R_; ++r) {
    Time load = 0;
    for (std::int32_t k = g.row_begin[r]; k < g.row_begin[r + 1]; ++k) load += duration_[g.row_block[k]] * N_;
    least_ = std::max(least_, load);
  }
  seq_.resize(places);
  pos_.resize(places);
  offset_.assign(places, 0);
  link_first_.assign(g.links, -1);
  by_.assign(nodes_, -1);
  seen_.assign(nodes_, 0);
  sent_before_.assign(nodes_, -1);
  sent_after_.assign(nodes_, -1);
  start_.assign(nodes_, 0);
  at_.assign(nodes_, 0);
  waits_.assign(nodes_, 0);
  cause_.assign(operations_, -1);
  dirty_.assign(nodes_ / 64 + 1, 0);
}

template <class F> void Kernel::before(Node v, F f) const {
  const std::int32_t b = v / N_, m = v % N_;
  if (v >= operations_) {
    const Arc& arc = arcs_[arc_of_link_[b - B_]];
    f(arc.source * N_ + m, start_[arc.source * N_ + m] + duration_[arc.source]);
    const Node u = sent_before_[v];
    if (u >= 0) f(u, start_[u] + length(u));
    return;
  }
  for (const Place& place : places_[b]) {
    const std::int32_t i = pos_[place.offset + m];
    if (i > begin_[place.row]) f(seq_[i - 1], start_[seq_[i - 1]] + duration_[seq_[i - 1] / N_]);
  }
  for (std::int32_t a : in_[b]) {
    const Arc& arc = arcs_[a];
    if (m < arc.distance) continue;
    const Node u = arc.link < 0 ? arc.source * N_ + m - arc.distance : transfer(a, m - arc.distance);
    f(u, start_[u] + (arc.link < 0 ? duration_[arc.source] : 0) + lag_[a]);
  }
}

template <class F> void Kernel::after(Node v, F f) const {
  const std::int32_t b = v / N_, m = v % N_;
  if (v >= operations_) {
    const Arc& arc = arcs_[arc_of_link_[b - B_]];
    f(arc.target * N_ + m + arc.distance);
    if (sent_after_[v] >= 0) f(sent_after_[v]);
    return;
  }
  for (const Place& place : places_[b]) {
    const std::int32_t i = pos_[place.offset + m];
    if (i + 1 < begin_[place.row + 1]) f(seq_[i + 1]);
  }
  for (std::int32_t a : out_[b]) {
    const Arc& arc = arcs_[a];
    if (m + arc.distance < N_) f(arc.link < 0 ? arc.target * N_ + m + arc.distance : transfer(a, m));
  }
}

void Kernel::note_positions(std::int32_t from, std::int32_t to, std::int32_t row) {
  for (std::int32_t i = from; i < to; ++i)
    for (const Place& place : places_[seq_[i] / N_])
      if (place.row == row) pos_[place.offset + seq_[i] % N_] = i;
}

// The transfers of each link that leaves `row` follow the order of their producers there.
void Kernel::relink(std::int32_t row, std::int32_t from, std::int32_t to, const std::vector<Node>& was) {
  for (std::int32_t link = 0; link < static_cast<std::int32_t>(link_row_.size()); ++link) {
    if (link_row_[link] != row) continue;
    Node first = -1, last = -1;
    for (Node v : was)
      for (std::int32_t a : sent_[v / N_])
        if (arcs_[a].link == link && v % N_ + arcs_[a].distance < N_) {
          if (first < 0) first = transfer(a, v % N_);
          last = transfer(a, v % N_);
        }
    if (first < 0) continue;
    Node left = sent_before_[first];
    const Node right = sent_after_[last];
    for (std::int32_t i = from; i < to; ++i)
      for (std::int32_t a : sent_[seq_[i] / N_])
        if (arcs_[a].link == link && seq_[i] % N_ + arcs_[a].distance < N_) {
          const Node t = transfer(a, seq_[i] % N_);
          sent_before_[t] = left;
          if (left >= 0) sent_after_[left] = t;
          left = t;
        }
    sent_after_[left] = right;
    if (right >= 0) sent_before_[right] = left;
  }
}

void Kernel::link_all() {
  std::vector<Node> last(link_row_.size(), -1);
  for (std::int32_t row = 0; row < R_; ++row)
    for (std::int32_t i = begin_[row]; i < begin_[row + 1]; ++i)
      for (std::int32_t a : sent_[seq_[i] / N_]) {
        const std::int32_t link = arcs_[a].link, m = seq_[i] % N_;
        if (link_row_[link] != row || !sent(a, m)) continue;
        const Node t = transfer(a, m);
        sent_before_[t] = last[link];
        sent_after_[t] = -1;
        if (last[link] >= 0) sent_after_[last[link]] = t; else link_first_[link] = t;
        last[link] = t;
      }
}

bool Kernel::set(const Node* rows) {
  std::copy(rows, rows + seq_.size(), seq_.begin());
  for (std::int32_t r = 0; r < R_; ++r) {
    note_positions(begin_[r], begin_[r + 1], r);
    for (std::int32_t i = begin_[r]; ring_ && i < begin_[r + 1]; ++i) offset_[place(seq_[i], r)] = rows[seq_.size() + i];
  }
  link_all();
  path_known_ = false;
  forget();
  overflow_ = total_overflow();
  std::fill(start_.begin(), start_.end(), 0);
  bool known = ring_ || (pools_.empty() ? sort_all() : simulate(kNever));
  if (known && cyclic_) by_time(), known = cycles(kNever);
  if (known && !cyclic_) makespan_ = latest_end();
  if (known) keep_if_best(); else makespan_ = kNever;
  return known;
}

void Kernel::keep_if_best() {
  if (overflow_ > 0 || makespan_ >= best_) return;
  best_ = makespan_;
  best_seq_ = seq_;
  for (std::int32_t r = 0; ring_ && r < R_; ++r)
    for (std::int32_t i = begin_[r]; i < begin_[r + 1]; ++i) best_seq_.push_back(offset_[place(seq_[i], r)]);
}

void Kernel::back_to_best() { if (best_ < kNever) { const std::vector<Node> rows = best_seq_; set(rows.data()); } }

bool Kernel::sort_all() {
  std::fill(waits_.begin(), waits_.end(), 0);
  std::int32_t there = 0;
  for (Node v = 0; v < nodes_; ++v) if (exists(v)) { ++there; after(v, [&](Node w) { ++waits_[w]; }); }
  topo_.clear();
  for (Node v = 0; v < nodes_; ++v) if (exists(v) && waits_[v] == 0) topo_.push_back(v);
  for (std::size_t i = 0; i < topo_.size(); ++i) {
    const Node v = topo_[i];
    at_[v] = static_cast<std::int32_t>(i);
    start_[v] = earliest(v);
    after(v, [&](Node w) { if (--waits_[w] == 0) topo_.push_back(w); });
  }
  return static_cast<std::int32_t>(topo_.size()) == there;
}

// Where `row` notes what it has of the block of `v`.
std::int32_t Kernel::place(Node v, std::int32_t row) const {
  for (const Place& place : places_[v / N_]) if (place.row == row) return place.offset;
  return -1;
}

// Edges are followed in the order of the times known last: most of them lead on, and few sweeps are enough.
void Kernel::by_time() {
  in_time_.clear();
  for (Node v = 0; v < nodes_; ++v) if (exists(v)) in_time_.push_back(v);
  std::sort(in_time_.begin(), in_time_.end(), [&](Node v, Node w) { return std::pair(start_[v], v) < std::pair(start_[w], w); });
}

// All that waits: after the last of a row, or of a link, comes the first of the next period.
void Kernel::gather() {
  link_all();
  edges_.clear();
  for (Node v : in_time_) {
    const std::int32_t b = v / N_, m = v % N_;
    if (v >= operations_) {
      const std::int32_t a = arc_of_link_[b - B_], row = link_row_[arcs_[a].link];
      edges_.push_back({v, arcs_[a].target * N_ + (ring_ ? 0 : m + arcs_[a].distance), ring_ ? arcs_[a].distance : 0, -1, lag_[a]});
      const bool last = sent_after_[v] < 0;
      const Node next = last ? link_first_[arcs_[a].link] : sent_after_[v];
      const Node now = arcs_[a].source * N_, then = arcs_[arc_of_link_[next / N_ - B_]].source * N_;
      edges_.push_back({v, next, offset_[place(then, row)] - offset_[place(now, row)] + last, -1, lag_[a]});
      continue;
    }
    for (const Place& here : places_[b]) {
      const std::int32_t i = pos_[here.offset + m] + 1;
      const bool last = i == begin_[here.row + 1];
      const Node next = seq_[last ? begin_[here.row] : i];
      const std::int32_t height = offset_[place(next, here.row)] - offset_[here.offset] + last;
      edges_.push_back({v, next, height, last && !ring_ ? -1 : here.row, duration_[b]});
    }
    for (std::int32_t a : out_[b]) {
      const Arc& arc = arcs_[a];
      if (!sent(a, m)) continue;
      if (arc.link >= 0) edges_.push_back({v, transfer(a, m), 0, -1, duration_[b]});
      else edges_.push_back({v, arc.target * N_ + (ring_ ? 0 : m + arc.distance), ring_ ? arc.distance : 0, -1, duration_[b] + lag_[a]});
    }
  }
}

// Longest paths at a span or period of `value`; where there are none, cycle_ is one that is too long for it (see
// weft/solver/relations/difference_constraints.py).
bool Kernel::settle(Time value) {
  std::fill(start_.begin(), start_.end(), 0);
  std::fill(by_.begin(), by_.end(), -1);
  for (;;) {
    Node changed = -1;
    for (std::size_t k = 0; k < edges_.size(); ++k) {
      const Edge& edge = edges_[k];
      const Time at = start_[edge.from] + edge.weight - edge.height * value;
      if (at > start_[edge.to]) start_[edge.to] = at, by_[edge.to] = static_cast<std::int32_t>(k), changed = edge.to;
    }
    if (changed < 0) return true;
    Node v = changed;
    for (++walk_; by_[v] >= 0 && seen_[v] != walk_; v = edges_[by_[v]].from) seen_[v] = walk_;
    if (by_[v] < 0) continue;
    cycle_.clear();
    Node w = v;
    do cycle_.push_back(by_[w]), w = edges_[by_[w]].from; while (w != v);
    std::reverse(cycle_.begin(), cycle_.end());
    return false;
  }
}

// The least span or period that the orders allow, and where its cycle runs along rows; false where it is above `limit`.
bool Kernel::cycles(Time limit) {
  gather();
  const std::vector<Time> was = start_;
  bool within = limit >= most_ || (limit >= least_ && settle(limit));
  Time value = least_;
  std::vector<std::int32_t> critical;
  while (within && !settle(value)) {
    Time weight = 0, height = 0;
    for (std::int32_t k : cycle_) weight += edges_[k].weight, height += edges_[k].height;
    within = height > 0;
    if (within) value = (weight + height - 1) / height, critical = cycle_;
  }
  if (!within) { start_ = was; return false; }
  makespan_ = value;
  path_.clear();
  critical_.clear();
  for (std::int32_t k : critical)
    if (edges_[k].row >= 0) {
      critical_.push_back(static_cast<std::int32_t>(path_.size()));
      path_.push_back({edges_[k].to, edges_[k].row});
    }
  path_known_ = true;
  by_time();
  return true;
}

// The same period from its `first` operation on: what stood before is of the next micro-batch.
void Kernel::turn(std::int32_t row, std::int32_t first) {
  const std::int32_t begin = begin_[row], end = begin_[row + 1], count = (first % (end - begin) + end - begin) % (end - begin);
  for (std::int32_t i = begin; i < begin + count; ++i) ++offset_[place(seq_[i], row)];
  std::rotate(seq_.begin() + begin, seq_.begin() + begin + count, seq_.begin() + end);
  note_positions(begin, end, row);
}

// One pass through time: an operation starts as soon as its turn has come on all of its rows, what it waits for is
// there, and its pools have room; of those that may start at one time the one with the smallest number goes first.
// False where some can never start, or where one would end after `limit`.
bool Kernel::simulate(Time limit) {
  std::vector<std::int32_t> turn(begin_.begin(), begin_.end() - 1);
  std::vector<Time> free(R_, 0), link_free(link_row_.size(), 0), arrival(operations_, 0), level(pools_.size(), 0);
  std::vector<std::int32_t> missing(operations_, 0);
  for (std::int32_t a = 0; a < static_cast<std::int32_t>(arcs_.size()); ++a)
    for (std::int32_t m = arcs_[a].distance; m < N_; ++m) ++missing[arcs_[a].target * N_ + m];
  std::priority_queue<Time, std::vector<Time>, std::greater<>> times;
  using Give = std::tuple<Time, std::int32_t, Time, Node>;
  std::priority_queue<Give, std::vector<Give>, std::greater<>> gives;
  times.push(0);
  std::int32_t done = 0;
  std::vector<Node> heads;
  while (!times.empty()) {
    const Time now = times.top();
    while (!times.empty() && times.top() == now) times.pop();
    Node giver = -1;
    while (!gives.empty() && std::get<0>(gives.top()) <= now) {
      level[std::get<1>(gives.top())] -= std::get<2>(gives.top());
      giver = std::get<3>(gives.top());
      gives.pop();
    }
    heads.clear();
    for (std::int32_t r = 0; r < R_; ++r) {
      if (turn[r] == begin_[r + 1]) continue;
      const Node v = seq_[turn[r]];
      const std::vector<Place>& at = places_[v / N_];
      if (at.front().row != r) continue;
      bool ready = missing[v] == 0 && arrival[v] <= now;
      for (const Place& place : at) ready = ready && pos_[place.offset + v % N_] == turn[place.row] && free[place.row] <= now;
      if (ready) heads.push_back(v);
    }
    std::sort(heads.begin(), heads.end(), [&](Node v, Node w) { return std::pair(v % N_, v) < std::pair(w % N_, w); });
    for (Node v : heads) {
      const std::int32_t b = v / N_, m = v % N_;
      bool room = true;
      for (std::size_t k = 0; k < pools_.size(); ++k)
        room = room && (pools_[k].take[b] == 0 || level[k] + pools_[k].take[b] <= pools_[k].capacity);
      if (!room) continue;
      bool waited = arrival[v] < now;
      for (const Place& place : places_[b]) waited = waited && free[place.row] < now;
      cause_[v] = waited ? giver : -1;
      const Time end = now + duration_[b];
      if (now + rest_[b] > limit) return false;
      start_[v] = now;
      ++done;
      times.push(end);
      for (const Place& place : places_[b]) { ++turn[place.row]; free[place.row] = end; }
      for (std::size_t k = 0; k < pools_.size(); ++k) {
        level[k] += pools_[k].take[b];
        if (pools_[k].given[b] != 0) gives.push({end, static_cast<std::int32_t>(k), pools_[k].given[b], v});
      }
      for (std::int32_t a : out_[b]) {
        if (m + arcs_[a].distance >= N_) continue;
        Time begin = end;
        if (arcs_[a].link >= 0) {
          begin = std::max(end, link_free[arcs_[a].link]);
          start_[transfer(a, m)] = begin;
          link_free[arcs_[a].link] = begin + lag_[a];
        }
        const Node w = arcs_[a].target * N_ + m + arcs_[a].distance;
        --missing[w];
        arrival[w] = std::max(arrival[w], begin + lag_[a]);
        times.push(begin + lag_[a]);
      }
    }
  }
  return done == operations_;
}

Time Kernel::latest_end() const {
  Time latest = 0;
  for (std::int32_t r = 0; r < R_; ++r)
    if (begin_[r] < begin_[r + 1]) {
      const Node v = seq_[begin_[r + 1] - 1];
      latest = std::max(latest, start_[v] + duration_[v / N_]);
    }
  return latest;
}

double Kernel::excess(const Memory& memory, std::int32_t from, std::int32_t to, Time level) const {
  double over = 0;
  for (std::int32_t i = from; i < to; ++i) {
    const std::int32_t b = seq_[i] / N_;
    if (level + memory.take[b] > memory.capacity) over += static_cast<double>(level + memory.take[b] - memory.capacity);
    level += memory.change[b];
  }
  return over;
}

double Kernel::total_overflow() const {
  double over = 0;
  for (const Memory& memory : memories_) {
    const std::int32_t from = begin_[memory.row], to = begin_[memory.row + 1];
    Time level = 0;  // what a steady state holds when a period begins
    for (std::int32_t i = from; ring_ && i < to; ++i) level += memory.change[seq_[i]] * offset_[place(seq_[i], memory.row)];
    over += excess(memory, from, to, level);
  }
  return over;
}

// Puts `now` in the place of what stands in `row` from `from` on, and notes what stood there.
void Kernel::replace(std::int32_t row, std::int32_t from, const std::vector<Node>& now) {
  const std::int32_t to = from + static_cast<std::int32_t>(now.size());
  if (cyclic_) {  // whole orders are kept to be taken back, and memory is added up anew
    std::copy(now.begin(), now.end(), seq_.begin() + from);
    note_positions(from, to, row);
    return;
  }
  Segment segment{row, from, {seq_.begin() + from, seq_.begin() + to}};
  for (std::int32_t k : memories_of_[row]) {
    Time level = 0;
    for (std::int32_t i = begin_[row]; i < from; ++i) level += memories_[k].change[seq_[i] / N_];
    overflow_ -= excess(memories_[k], from, to, level);
    std::copy(now.begin(), now.end(), seq_.begin() + from);
    overflow_ += excess(memories_[k], from, to, level);
    std::copy(segment.before.begin(), segment.before.end(), seq_.begin() + from);
  }
  std::copy(now.begin(), now.end(), seq_.begin() + from);
  note_positions(from, to, row);
  relink(row, from, to, segment.before);
  undo_.push_back(std::move(segment));
}

// Whether a block is in both of two neighbouring runs: its micro-batches keep their order.
bool Kernel::shared(std::int32_t a, std::int32_t mid, std::int32_t b) const {
  for (std::int32_t i = a; i < mid; ++i) {
    if (i > a && seq_[i] / N_ == seq_[i - 1] / N_) continue;  // runs of one block may be as long as there are micro-batches
    for (std::int32_t j = mid; j < b; ++j)
      if ((j == mid || seq_[j] / N_ != seq_[j - 1] / N_) && seq_[i] / N_ == seq_[j] / N_) return true;
  }
  return false;
}

// Exchanges two neighbouring runs of a row, [a, mid) and [mid, b); in other rows what is in the second one then goes
// before what is in the first.
bool Kernel::swap_runs(std::int32_t row, std::int32_t a, std::int32_t mid, std::int32_t b) {
  if (shared(a, mid, b)) return false;
  std::vector<Node> now(seq_.begin() + mid, seq_.begin() + b);
  now.insert(now.end(), seq_.begin() + a, seq_.begin() + mid);
  bool several = false;
  for (Node v : now) several = several || places_[v / N_].size() > 1;
  if (several && !fix_other_rows(row, a, mid, b)) return false;
  replace(row, a, now);
  return true;
}

bool Kernel::fix_other_rows(std::int32_t row, std::int32_t a, std::int32_t mid, std::int32_t b) {
  for (std::int32_t other = 0; other < R_; ++other) {
    if (other == row) continue;
    const std::int32_t length = begin_[other + 1] - begin_[other];
    std::int32_t first = INT32_MAX, last = INT32_MIN, shift = INT32_MAX;
    for (std::int32_t i = a; i < b; ++i)
      for (const Place& there : places_[seq_[i] / N_])
        if (there.row == other) {  // in the period of `other` that has the micro-batch
          const std::int32_t ahead = offset_[there.offset] - offset_[place(seq_[i], row)];
          if (shift == INT32_MAX) shift = ahead;
          const std::int32_t at = pos_[there.offset + seq_[i] % N_] + length * (shift - ahead);
          if (i < mid) first = std::min(first, at); else last = std::max(last, at);
        }
    if (first > last) continue;
    if (last - first >= length) return false;
    if (ring_) {
      turn(other, first - begin_[other]);
      last += begin_[other] - first;
      first = begin_[other];
    }
    std::vector<Node> now, rest;
    for (std::int32_t i = first; i <= last; ++i) {
      const bool second = std::find(seq_.begin() + mid, seq_.begin() + b, seq_[i]) != seq_.begin() + b;
      (second ? now : rest).push_back(seq_[i]);
    }
    for (Node v : now)
      for (Node w : rest) if (v / N_ == w / N_) return false;
    now.insert(now.end(), rest.begin(), rest.end());
    replace(other, first, now);
  }
  return true;
}

// Times what the segments in undo_ change; false for a cycle, or where something would end after `limit`.
bool Kernel::time_again(Time limit) {
  if (cyclic_) return cycles(limit);
  if (!pools_.empty()) {
    old_start_.clear();
    const std::vector<Time> was = start_;
    if (simulate(limit)) { makespan_ = latest_end(); return true; }
    start_ = was;
    return false;
  }
  std::int32_t low = INT32_MAX, high = -1;
  auto reach = [&](Node v) { low = std::min(low, at_[v]); high = std::max(high, at_[v]); };
  for (const Segment& segment : undo_) {
    reach(segment.before.front());
    for (Node v : segment.before) {
      reach(v);
      for (std::int32_t a : sent_[v / N_]) if (v % N_ + arcs_[a].distance < N_) reach(transfer(a, v % N_));
    }
  }
  old_topo_from_ = low;
  old_topo_.assign(topo_.begin() + low, topo_.begin() + high + 1);
  queue_.clear();
  for (Node v : old_topo_) after(v, [&](Node w) { if (at_[w] <= high) ++waits_[w]; });
  for (Node v : old_topo_) if (waits_[v] == 0) queue_.push_back(v);
  for (std::size_t i = 0; i < queue_.size(); ++i)
    after(queue_[i], [&](Node w) { if (at_[w] <= high && --waits_[w] == 0) queue_.push_back(w); });
  if (queue_.size() < old_topo_.size()) {
    for (Node v : old_topo_) waits_[v] = 0;
    old_topo_.clear();
    return false;
  }
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    topo_[low + i] = queue_[i];
    at_[queue_[i]] = low + static_cast<std::int32_t>(i);
  }
  auto touch = [&](Node w) { dirty_[at_[w] >> 6] |= std::uint64_t{1} << (at_[w] & 63); };
  for (std::int32_t i = low; i <= high; ++i) dirty_[i >> 6] |= std::uint64_t{1} << (i & 63);
  for (const Segment& segment : undo_)  // what follows a segment has another predecessor
    for (std::size_t k = 0; k < segment.before.size(); ++k) {
      const Node v = seq_[segment.from + k];
      if (k + 1 == segment.before.size()) after(v, touch);
      for (std::int32_t a : sent_[v / N_]) if (v % N_ + arcs_[a].distance < N_) after(transfer(a, v % N_), touch);
    }
  const std::int32_t words = static_cast<std::int32_t>(dirty_.size());
  bool within = true;
  for (std::int32_t word = low >> 6; word < words; ++word)
    while (dirty_[word]) {
      const std::int32_t i = word * 64 + __builtin_ctzll(dirty_[word]);
      dirty_[word] &= dirty_[word] - 1;
      if (!within) continue;
      const Node v = topo_[i];
      const Time now = earliest(v);
      if (now == start_[v]) continue;
      if (v < operations_ && now + rest_[v / N_] > limit) { within = false; continue; }
      old_start_.push_back({v, start_[v]});
      start_[v] = now;
      after(v, touch);
    }
  if (!within) return false;
  makespan_ = latest_end();  // what is not timed again may end after `limit`, too
  return makespan_ <= limit;
}

void Kernel::take_back() {
  if (cyclic_) {
    seq_ = old_seq_;
    offset_ = old_offset_;
    for (std::int32_t r = 0; r < R_; ++r) note_positions(begin_[r], begin_[r + 1], r);
  }
  for (std::size_t k = undo_.size(); k-- > 0;) {
    const Segment segment = std::move(undo_[k]);
    const std::int32_t to = segment.from + static_cast<std::int32_t>(segment.before.size());
    const std::vector<Node> now(seq_.begin() + segment.from, seq_.begin() + to);
    std::copy(segment.before.begin(), segment.before.end(), seq_.begin() + segment.from);
    note_positions(segment.from, to, segment.row);
    relink(segment.row, segment.from, to, now);
  }
  for (std::size_t i = 0; i < old_topo_.size(); ++i) {
    topo_[old_topo_from_ + i] = old_topo_[i];
    at_[old_topo_[i]] = old_topo_from_ + static_cast<std::int32_t>(i);
  }
  for (std::size_t i = old_start_.size(); i-- > 0;) start_[old_start_[i].first] = old_start_[i].second;
  overflow_ = old_overflow_;
  forget();
}

void Kernel::find_path() {
  path_.clear();
  critical_.clear();
  Node v = -1;
  for (std::int32_t r = 0; r < R_ && v < 0; ++r)
    if (begin_[r] < begin_[r + 1]) {
      const Node last = seq_[begin_[r + 1] - 1];
      if (start_[last] + duration_[last / N_] == makespan_) v = last;
    }
  while (v >= 0) {
    const std::int32_t b = v / N_, m = v % N_;
    Node previous = -1;
    std::int32_t row = -1;
    if (v < operations_)
      for (const Place& place : places_[b]) {
        const std::int32_t i = pos_[place.offset + m];
        if (previous < 0 && i > begin_[place.row] && start_[seq_[i - 1]] + duration_[seq_[i - 1] / N_] == start_[v])
          previous = seq_[i - 1], row = place.row;
      }
    if (previous < 0) before(v, [&](Node u, Time at) { if (previous < 0 && at == start_[v]) previous = u; });
    if (previous < 0 && v < operations_ && !pools_.empty()) previous = cause_[v];
    if (row >= 0) critical_.push_back(static_cast<std::int32_t>(path_.size()));
    path_.push_back({v, row});
    v = previous;
  }
  path_known_ = true;
}

// Takes an operation of several rows to the time of another one in `row`, in all of its rows at once; not beyond the
// micro-batches of its block beside it.
bool Kernel::shift(Node v, std::int32_t row, Random& random) {
  const std::int32_t far = 1 + random.below(1 << (1 + random.below(5)));
  const bool later = random.below(2) == 1;
  const std::int32_t i = pos_[place(v, row) + v % N_], goal = later ? std::min(begin_[row + 1] - 1, i + far) : std::max(begin_[row], i - far);
  const Time time = start_[seq_[goal]];
  bool moved = false;
  for (const Place& here : places_[v / N_]) {
    const std::int32_t at = pos_[here.offset + v % N_];
    std::int32_t to = at;
    if (later)
      while (to + 1 < begin_[here.row + 1] && start_[seq_[to + 1]] <= time && seq_[to + 1] / N_ != v / N_) ++to;
    else
      while (to > begin_[here.row] && start_[seq_[to - 1]] >= time && seq_[to - 1] / N_ != v / N_) --to;
    if (to == at) continue;
    std::vector<Node> now(seq_.begin() + std::min(at, to), seq_.begin() + std::max(at, to) + 1);
    if (later) std::rotate(now.begin(), now.begin() + 1, now.end()); else std::rotate(now.begin(), now.end() - 1, now.end());
    replace(here.row, std::min(at, to), now);
    moved = true;
  }
  return moved;
}

// A move: two neighbouring runs of a row change places, mostly where the critical path goes from one into the other.
bool Kernel::propose(Random& random) {
  if (!path_known_) find_path();
  const std::int32_t what = random.below(16);
  std::int32_t row, mid;
  if (critical_.empty() || what == 0) {
    const std::int32_t i = random.below(static_cast<std::int32_t>(seq_.size()));
    row = static_cast<std::int32_t>(std::upper_bound(begin_.begin(), begin_.end(), i) - begin_.begin()) - 1;
    mid = i;
  } else {
    const Step step = path_[critical_[random.below(static_cast<std::int32_t>(critical_.size()))]];
    row = step.row;
    mid = -1;
    for (const Place& place : places_[step.node / N_]) if (place.row == row) mid = pos_[place.offset + step.node % N_];
  }
  if (several_ && random.below(4) == 0)
    for (std::int32_t i = mid; i >= std::max(begin_[row], mid - 1); --i)
      if (places_[seq_[i] / N_].size() > 1) return shift(seq_[i], row, random);
  if (ring_) {  // where a period begins is open: half of it is on either side
    const std::int32_t half = (begin_[row + 1] - begin_[row]) / 2;
    turn(row, mid - begin_[row] - half);
    mid = begin_[row] + half;
  }
  if (mid == begin_[row]) return false;
  std::int32_t a = mid - 1, b = mid + 1;
  const std::int32_t left = begin_[row], right = begin_[row + 1];
  auto block = [&](std::int32_t i) { return seq_[i] / N_; };
  if (what < 8) {
    // The two neighbours.
  } else if (what < 11) {  // one of them goes further
    const std::int32_t far = 1 + random.below(1 << (1 + random.below(5)));
    if (random.below(2)) a = std::max(left, mid - far); else b = std::min(right, mid + far);
  } else if (what < 14) {  // runs of one block
    if (what != 12) while (a > left && block(a - 1) == block(mid - 1)) --a;
    if (what != 13) while (b < right && block(b) == block(mid)) ++b;
  } else {  // any two runs
    a = std::max(left, mid - 1 - random.below(6));
    b = std::min(right, mid + 1 + random.below(6));
  }
  return swap_runs(row, a, mid, b);
}

std::int64_t Kernel::anneal(std::int64_t evaluations, double hot, double cold, double penalty, std::uint64_t seed) {
  Random random{seed};
  double heat = hot;
  const double cooling = evaluations > 1 ? std::pow(cold / hot, 1.0 / static_cast<double>(evaluations - 1)) : 1.0;
  std::int64_t better = 0;
  if (makespan_ >= kNever) return 0;
  for (std::int64_t e = 0; e < evaluations; ++e, heat *= cooling) {
    const double allowed = static_cast<double>(makespan_) + penalty * overflow_ - heat * std::log(random.unit());
    old_overflow_ = overflow_;
    if (cyclic_) old_seq_ = seq_, old_offset_ = offset_;
    const Time was = makespan_;
    bool moved = propose(random);
    if (random.below(4) == 0) moved = propose(random) || moved;
    if (!moved) { if (cyclic_ || !undo_.empty()) take_back(); continue; }
    if (cyclic_) overflow_ = total_overflow();
    const double room = allowed - penalty * overflow_;
    if (room < 0 || (overflow_ > 0 && old_overflow_ == 0) ||
        !time_again(room < static_cast<double>(kNever) ? static_cast<Time>(std::floor(room)) : kNever)) {
      take_back();
      makespan_ = was;
      continue;
    }
    forget();
    path_known_ = cyclic_;
    better += overflow_ == 0 && makespan_ < best_;
    keep_if_best();
  }
  return better;
}

}  // namespace

extern "C" {
#ifdef _WIN32
#define WEFT_API __declspec(dllexport)
#else
#define WEFT_API __attribute__((visibility("default")))
#endif
WEFT_API int weft_version() { return kVersion; }
WEFT_API Kernel* weft_new(const Instance* instance) { return new Kernel(*instance); }
WEFT_API void weft_delete(Kernel* kernel) { delete kernel; }
WEFT_API int weft_set(Kernel* kernel, const Node* rows) { return kernel->set(rows) ? 1 : 0; }
WEFT_API Time weft_makespan(const Kernel* kernel) { return kernel->makespan(); }
WEFT_API double weft_overflow(const Kernel* kernel) { return kernel->overflow(); }
WEFT_API Time weft_best(const Kernel* kernel) { return kernel->best(); }
WEFT_API void weft_best_rows(const Kernel* kernel, Node* rows) { kernel->best_rows(rows); }
WEFT_API void weft_starts(const Kernel* kernel, Time* starts) { kernel->starts(starts); }
WEFT_API void weft_back_to_best(Kernel* kernel) { kernel->back_to_best(); }
WEFT_API std::int64_t weft_anneal(Kernel* kernel, std::int64_t evaluations, double hot, double cold, double penalty,
                                  std::uint64_t seed) {
  return kernel->anneal(evaluations, hot, cold, penalty, seed);
}
}
