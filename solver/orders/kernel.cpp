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
using Index = std::int32_t;
using Node = Index;

// Raised with every change that the Python side can see; control/compiled.py refuses a binary of another version.
constexpr int kVersion = 9;
constexpr Time kNever = INT64_MAX / 4;
enum Objective : Index { kMakespan, kSpan, kPeriod };

struct Arc { Index source, target, distance, link; };

// What the caller describes a problem with; see native.py for the meaning of each field.
struct Instance {
  Index blocks, micro_batches, rows, memories, arcs, links, pools, objective;
  const Time* duration;
  const Index* row_begin;
  const Index* row_block;
  const Arc* arc;
  const Time* lag;
  const Index* link_row;
  const Index* memory_row;
  const Time* capacity;
  const Time* take;
  const Time* change;
  const Time* pool_capacity;
  const Time* pool_take;
  const Time* pool_given;
  const Time* least;
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
  Index below(Index n) { return static_cast<Index>((next() >> 33) % static_cast<std::uint64_t>(n)); }
  double unit() { return (static_cast<double>(next() >> 11) + 1.0) * 0x1.0p-53; }  // above 0, at most 1
};

struct Segment { Index row, from; std::vector<Node> before; };

struct Kernel {
  struct Place { Index row, offset; };  // where a block's micro-batches note their positions in a row

  // The problem.
  Index B_, N_, R_, operations_, nodes_;
  bool cyclic_, ring_;                         // not the makespan; the period
  bool several_ = false;  // some blocks are in several rows, and times say where each row has its turn
  std::vector<Time> duration_, lag_;
  std::vector<Arc> arcs_;
  std::vector<Index> linked_;           // per arc: its number among the linked ones, or -1
  std::vector<Index> arc_of_link_;      // per linked arc: its number among all
  std::vector<std::vector<Index>> in_, out_;  // per block: arcs
  std::vector<std::vector<Index>> sent_;      // per block: linked arcs out of it, in order
  std::vector<std::vector<Place>> places_;     // per block: the rows that it is in
  std::vector<Index> begin_;            // per row: where it begins in seq_
  std::vector<Index> link_row_;
  struct Memory { Index row; Time capacity; std::vector<Time> take, change; };
  std::vector<Memory> memories_;
  std::vector<std::vector<Index>> memories_of_;  // per row
  struct Pool { Time capacity; std::vector<Time> take, given; };
  std::vector<Pool> pools_;
  Time least_, most_ = 0;                      // no span or period is below, and none is above
  std::vector<Time> rest_;                     // per block: the longest path from its start through its own micro-batch

  // The orders and their times.
  std::vector<Node> seq_;                      // all rows, one behind the other
  std::vector<Index> pos_;              // per place and micro-batch: index into seq_
  std::vector<Node> sent_before_, sent_after_; // per transfer: its neighbours on its link, or -1
  std::vector<Time> start_;
  std::vector<Node> topo_;
  std::vector<Index> at_;               // per node: its index in topo_
  Time makespan_ = kNever;                     // or the span, or the period
  double overflow_ = 0;
  std::vector<Index> offset_;           // by place: the micro-batch of the block in a period; 0 but for periods

  // With cycles: what waits for what, `height` periods later; how each node got its time, and what asked for more.
  struct Edge { Node from, to; Index height, row; Time weight; };
  std::vector<Edge> edges_;
  std::vector<Node> in_time_, link_first_;
  std::vector<Index> by_, seen_, cycle_, old_offset_;
  Index walk_ = 0;
  std::vector<Node> old_seq_;

  // The best orders, and what a move may have to take back.
  Time best_ = kNever;
  std::vector<Node> best_seq_;
  std::vector<Segment> undo_;
  std::vector<std::pair<Node, Time>> old_start_;
  std::vector<Node> old_topo_;
  Index old_topo_from_ = 0;
  double old_overflow_ = 0;
  std::vector<std::uint64_t> dirty_;
  std::vector<Index> waits_;
  std::vector<Node> queue_;
  std::vector<Node> cause_;                    // with pools: whose end made room for an operation, or -1

  // The critical path, from its end: operations that a row leads to, each with that row.
  struct Step { Node node; Index row; };
  std::vector<Step> path_;
  bool path_known_ = false;

  Time length(Node v) const { return v < operations_ ? duration_[v / N_] : lag_[arc_of_link_[v / N_ - B_]]; }
  Time end(Node v) const { return v < 0 ? 0 : start_[v] + length(v); }
  Node transfer(Index arc, Index m) const { return (B_ + linked_[arc]) * N_ + m; }
  Time earliest(Node v) const { Time t = 0; before(v, [&](Node, Time at, Index) { t = std::max(t, at); }); return t; }
  bool sent(Index arc, Index m) const { return ring_ || m + arcs_[arc].distance < N_; }
  bool exists(Node v) const { return v < operations_ || sent(arc_of_link_[v / N_ - B_], v % N_); }
  void forget() { undo_.clear(); old_start_.clear(); old_topo_.clear(); }

  explicit Kernel(const Instance& g)
      : B_(g.blocks), N_(g.micro_batches), R_(g.rows), operations_(g.blocks * g.micro_batches), nodes_(0),
        cyclic_(g.objective != kMakespan), ring_(g.objective == kPeriod),
        duration_(g.duration, g.duration + g.blocks), lag_(g.lag, g.lag + g.arcs), arcs_(g.arc, g.arc + g.arcs),
        linked_(g.arcs, -1), in_(g.blocks), out_(g.blocks), sent_(g.blocks), places_(g.blocks), begin_(g.rows + 1),
        link_row_(g.link_row, g.link_row + g.links), memories_of_(g.rows), least_(*g.least) {
    for (Index a = 0; a < g.arcs; ++a) {
      in_[arcs_[a].target].push_back(a);
      out_[arcs_[a].source].push_back(a);
      if (arcs_[a].link < 0) continue;
      linked_[a] = static_cast<Index>(arc_of_link_.size());
      arc_of_link_.push_back(a);
      sent_[arcs_[a].source].push_back(a);
    }
    nodes_ = (B_ + static_cast<Index>(arc_of_link_.size())) * N_;
    Index places = 0;
    for (Index r = 0; r < R_; ++r) {
      begin_[r] = places;
      for (Index k = g.row_begin[r]; k < g.row_begin[r + 1]; ++k, places += N_)
        places_[g.row_block[k]].push_back({r, places});
    }
    begin_[R_] = places;
    for (const std::vector<Place>& of : places_) several_ = several_ || (of.size() > 1 && !ring_);
    for (Index k = 0; k < g.memories; ++k) {
      const Time *take = g.take + Time{k} * B_, *change = g.change + Time{k} * B_;
      memories_.push_back({g.memory_row[k], g.capacity[k], {take, take + B_}, {change, change + B_}});
      memories_of_[g.memory_row[k]].push_back(k);
    }
    for (Index k = 0; k < g.pools; ++k) {
      const Time *take = g.pool_take + Time{k} * B_, *given = g.pool_given + Time{k} * B_;
      pools_.push_back({g.pool_capacity[k], {take, take + B_}, {given, given + B_}});
    }
    rest_ = duration_;
    for (Index round = 0, changed = 1; changed && round <= B_; ++round) {
      changed = 0;
      for (Index a = 0; a < g.arcs; ++a) {
        const Time through = duration_[arcs_[a].source] + lag_[a] + rest_[arcs_[a].target];
        if (arcs_[a].distance == 0 && through > rest_[arcs_[a].source]) rest_[arcs_[a].source] = through, changed = 1;
      }
    }
    for (Time lag : lag_) most_ += lag * N_;
    for (Time duration : duration_) most_ += duration * N_;
    seq_.resize(places);
    pos_.resize(places);
    offset_.assign(places, 0);
    link_first_.assign(g.links, -1);
    for (std::vector<Index>* each : {&by_, &seen_, &sent_before_, &sent_after_, &at_}) each->assign(nodes_, -1);
    start_.assign(nodes_, 0);
    waits_.assign(nodes_, 0);
    cause_.assign(operations_, -1);
    dirty_.assign(nodes_ / 64 + 1, 0);
  }

  // f(node, when it lets `v` start, the row that says so or -1)
  template <class F> void before(Node v, F f) const {
    const Index b = v / N_, m = v % N_;
    if (v >= operations_) {
      const Arc& arc = arcs_[arc_of_link_[b - B_]];
      f(arc.source * N_ + m, end(arc.source * N_ + m), -1);
      if (sent_before_[v] >= 0) f(sent_before_[v], end(sent_before_[v]), -1);
      return;
    }
    for (const Place& place : places_[b]) {
      const Index i = pos_[place.offset + m];
      if (i > begin_[place.row]) f(seq_[i - 1], end(seq_[i - 1]), place.row);
    }
    for (Index a : in_[b]) {
      const Arc& arc = arcs_[a];
      if (m < arc.distance) continue;
      const Node u = arc.link < 0 ? arc.source * N_ + m - arc.distance : transfer(a, m - arc.distance);
      f(u, start_[u] + (arc.link < 0 ? duration_[arc.source] : 0) + lag_[a], -1);
    }
  }

  template <class F> void after(Node v, F f) const {
    const Index b = v / N_, m = v % N_;
    if (v >= operations_) {
      const Arc& arc = arcs_[arc_of_link_[b - B_]];
      f(arc.target * N_ + m + arc.distance);
      if (sent_after_[v] >= 0) f(sent_after_[v]);
      return;
    }
    for (const Place& place : places_[b]) {
      const Index i = pos_[place.offset + m];
      if (i + 1 < begin_[place.row + 1]) f(seq_[i + 1]);
    }
    for (Index a : out_[b]) {
      const Arc& arc = arcs_[a];
      if (m + arc.distance < N_) f(arc.link < 0 ? arc.target * N_ + m + arc.distance : transfer(a, m));
    }
  }

  void note_positions(Index from, Index to, Index row) {
    for (Index i = from; i < to; ++i) pos_[place(seq_[i], row) + seq_[i] % N_] = i;
  }

  // The transfers of each link that leaves `row`, or any row if that is -1, follow the order of their producers there.
  void relink(Index row) {
    for (Index link = 0; link < static_cast<Index>(link_row_.size()); ++link) {
      const Index from = link_row_[link];
      Node last = -1;
      for (Index i = begin_[from]; (row < 0 || row == from) && i < begin_[from + 1]; ++i)
        for (Index a : sent_[seq_[i] / N_]) {
          if (arcs_[a].link != link || !sent(a, seq_[i] % N_)) continue;
          const Node t = transfer(a, seq_[i] % N_);
          sent_before_[t] = last;
          sent_after_[t] = -1;
          if (last >= 0) sent_after_[last] = t; else link_first_[link] = t;
          last = t;
        }
    }
  }

  bool set(const Node* rows) {
    std::copy(rows, rows + seq_.size(), seq_.begin());
    for (Index r = 0; r < R_; ++r) {
      note_positions(begin_[r], begin_[r + 1], r);
      for (Index i = begin_[r]; ring_ && i < begin_[r + 1]; ++i) offset_[place(seq_[i], r)] = rows[seq_.size() + i];
    }
    relink(-1);
    path_known_ = false;
    forget();
    overflow_ = total_overflow();
    std::fill(start_.begin(), start_.end(), 0);
    bool known = ring_ || (pools_.empty() ? sort_all() : simulate(kNever));
    if (known && cyclic_) by_time(), known = cycles(kNever);
    if (known && !cyclic_) makespan_ = end(last_to_end());
    if (known) keep_if_best(); else makespan_ = kNever;
    return known;
  }

  void keep_if_best() {
    if (overflow_ > 0 || makespan_ >= best_) return;
    best_ = makespan_;
    best_seq_ = seq_;
    for (Index r = 0; ring_ && r < R_; ++r)
      for (Index i = begin_[r]; i < begin_[r + 1]; ++i) best_seq_.push_back(offset_[place(seq_[i], r)]);
  }

  void back_to_best() { if (best_ < kNever) { const std::vector<Node> rows = best_seq_; set(rows.data()); } }

  bool sort_all() {
    std::fill(waits_.begin(), waits_.end(), 0);
    Index there = 0;
    for (Node v = 0; v < nodes_; ++v) if (exists(v)) { ++there; after(v, [&](Node w) { ++waits_[w]; }); }
    topo_.clear();
    for (Node v = 0; v < nodes_; ++v) if (exists(v) && waits_[v] == 0) topo_.push_back(v);
    for (std::size_t i = 0; i < topo_.size(); ++i) {
      const Node v = topo_[i];
      at_[v] = static_cast<Index>(i);
      start_[v] = earliest(v);
      after(v, [&](Node w) { if (--waits_[w] == 0) topo_.push_back(w); });
    }
    return static_cast<Index>(topo_.size()) == there;
  }

  // Where `row` notes what it has of the block of `v`.
  Index place(Node v, Index row) const {
    for (const Place& place : places_[v / N_]) if (place.row == row) return place.offset;
    return -1;
  }

  // Edges are followed in the order of the times known last: most of them lead on, and few sweeps are enough.
  void by_time() {
    in_time_.clear();
    for (Node v = 0; v < nodes_; ++v) if (exists(v)) in_time_.push_back(v);
    auto key = [&](Node v) { return std::pair(start_[v], v); };
    std::sort(in_time_.begin(), in_time_.end(), [&](Node v, Node w) { return key(v) < key(w); });
  }

  // All that waits: after the last of a row, or of a link, comes the first of the next period.
  void gather() {
    relink(-1);
    edges_.clear();
    auto served = [&](Node v, Index a, Index m, Time length) {  // what waits at the end of an arc
      const Node target = arcs_[a].target * N_ + (ring_ ? 0 : m + arcs_[a].distance);
      edges_.push_back({v, target, ring_ ? arcs_[a].distance : 0, -1, length});
    };
    for (Node v : in_time_) {
      const Index b = v / N_, m = v % N_;
      if (v >= operations_) {
        const Index a = arc_of_link_[b - B_], row = link_row_[arcs_[a].link];
        served(v, a, m, lag_[a]);
        const bool last = sent_after_[v] < 0;
        const Node next = last ? link_first_[arcs_[a].link] : sent_after_[v];
        const Node now = arcs_[a].source * N_, then = arcs_[arc_of_link_[next / N_ - B_]].source * N_;
        edges_.push_back({v, next, offset_[place(then, row)] - offset_[place(now, row)] + last, -1, lag_[a]});
        continue;
      }
      for (const Place& here : places_[b]) {
        const Index i = pos_[here.offset + m] + 1;
        const bool last = i == begin_[here.row + 1];
        const Node next = seq_[last ? begin_[here.row] : i];
        const Index height = offset_[place(next, here.row)] - offset_[here.offset] + last;
        edges_.push_back({v, next, height, last && !ring_ ? -1 : here.row, duration_[b]});
      }
      for (Index a : out_[b]) {
        if (!sent(a, m)) continue;
        if (arcs_[a].link >= 0) edges_.push_back({v, transfer(a, m), 0, -1, duration_[b]});
        else served(v, a, m, duration_[b] + lag_[a]);
      }
    }
  }

  // Longest paths at a span or period of `value`; where there are none, cycle_ is one that is too long for it (see
  // weft/solver/relations/difference_constraints.py).
  bool settle(Time value) {
    std::fill(start_.begin(), start_.end(), 0);
    std::fill(by_.begin(), by_.end(), -1);
    for (;;) {
      Node changed = -1;
      for (std::size_t k = 0; k < edges_.size(); ++k) {
        const Edge& edge = edges_[k];
        const Time at = start_[edge.from] + edge.weight - edge.height * value;
        if (at > start_[edge.to]) start_[edge.to] = at, by_[edge.to] = static_cast<Index>(k), changed = edge.to;
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

  // The least span or period that the orders allow, and where its cycle runs along rows; false if it is above `limit`.
  bool cycles(Time limit) {
    gather();
    const std::vector<Time> was = start_;
    bool within = limit >= most_ || (limit >= least_ && settle(limit));
    Time value = least_;
    std::vector<Index> critical;
    while (within && !settle(value)) {
      Time weight = 0, height = 0;
      for (Index k : cycle_) weight += edges_[k].weight, height += edges_[k].height;
      within = height > 0;
      if (within) value = (weight + height - 1) / height, critical = cycle_;
    }
    if (!within) { start_ = was; return false; }
    makespan_ = value;
    path_.clear();
    for (Index k : critical)
      if (edges_[k].row >= 0) path_.push_back({edges_[k].to, edges_[k].row});
    path_known_ = true;
    by_time();
    return true;
  }

  // The same period from its `first` operation on: what stood before is of the next micro-batch.
  void turn(Index row, Index first) {
    const Index begin = begin_[row], end = begin_[row + 1], size = end - begin, count = (first % size + size) % size;
    for (Index i = begin; i < begin + count; ++i) ++offset_[place(seq_[i], row)];
    std::rotate(seq_.begin() + begin, seq_.begin() + begin + count, seq_.begin() + end);
    note_positions(begin, end, row);
  }

  // One pass through time: an operation starts as soon as its turn has come on all of its rows, what it waits for is
  // there, and its pools have room; of those that may start at one time the one with the smallest number goes first.
  // False where some can never start, or where one would end after `limit`.
  bool simulate(Time limit) {
    std::vector<Index> turn(begin_.begin(), begin_.end() - 1);
    std::vector<Time> free(R_, 0), link_free(link_row_.size(), 0), arrival(operations_, 0), level(pools_.size(), 0);
    std::vector<Index> missing(operations_, 0);
    for (Index a = 0; a < static_cast<Index>(arcs_.size()); ++a)
      for (Index m = arcs_[a].distance; m < N_; ++m) ++missing[arcs_[a].target * N_ + m];
    std::priority_queue<Time, std::vector<Time>, std::greater<>> times;
    using Give = std::tuple<Time, Index, Time, Node>;
    std::priority_queue<Give, std::vector<Give>, std::greater<>> gives;
    times.push(0);
    Index done = 0;
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
      for (Index r = 0; r < R_; ++r) {
        if (turn[r] == begin_[r + 1]) continue;
        const Node v = seq_[turn[r]];
        if (places_[v / N_].front().row != r) continue;
        bool ready = missing[v] == 0 && arrival[v] <= now;
        for (const Place& at : places_[v / N_])
          ready = ready && pos_[at.offset + v % N_] == turn[at.row] && free[at.row] <= now;
        if (ready) heads.push_back(v);
      }
      auto key = [&](Node v) { return std::pair(v % N_, v); };
      std::sort(heads.begin(), heads.end(), [&](Node v, Node w) { return key(v) < key(w); });
      for (Node v : heads) {
        const Index b = v / N_, m = v % N_;
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
          if (pools_[k].given[b] != 0) gives.push({end, static_cast<Index>(k), pools_[k].given[b], v});
        }
        for (Index a : out_[b]) {
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

  // What ends last, or -1 where there is nothing.
  Node last_to_end() const {
    Node last = -1;
    for (Index r = 0; r < R_; ++r)
      if (const Index i = begin_[r + 1] - 1; i >= begin_[r] && (last < 0 || end(seq_[i]) > end(last))) last = seq_[i];
    return last;
  }

  // By how much a row exceeds one of its memories, added up over its operations.
  double excess(const Memory& memory) const {
    const Index from = begin_[memory.row], to = begin_[memory.row + 1];
    double over = 0;
    Time level = 0;  // what a steady state holds when a period begins
    for (Index i = from; ring_ && i < to; ++i) level += memory.change[seq_[i]] * offset_[place(seq_[i], memory.row)];
    for (Index i = from; i < to; ++i) {
      const Index b = seq_[i] / N_;
      over += static_cast<double>(std::max(Time{0}, level + memory.take[b] - memory.capacity));
      level += memory.change[b];
    }
    return over;
  }

  double total_overflow() const {
    double over = 0;
    for (const Memory& memory : memories_) over += excess(memory);
    return over;
  }

  // Puts `now` in the place of what stands in `row` from `from` on, and notes what stood there.
  void replace(Index row, Index from, const std::vector<Node>& now) {
    const Index to = from + static_cast<Index>(now.size());
    if (cyclic_) {  // whole orders are kept to be taken back, and memory is added up anew
      std::copy(now.begin(), now.end(), seq_.begin() + from);
      note_positions(from, to, row);
      return;
    }
    Segment segment{row, from, {seq_.begin() + from, seq_.begin() + to}};
    for (Index k : memories_of_[row]) overflow_ -= excess(memories_[k]);
    std::copy(now.begin(), now.end(), seq_.begin() + from);
    for (Index k : memories_of_[row]) overflow_ += excess(memories_[k]);
    note_positions(from, to, row);
    relink(row);
    undo_.push_back(std::move(segment));
  }

  // Exchanges two neighbouring runs of a row, [a, mid) and [mid, b); in other rows what is in the second one then goes
  // before what is in the first. Micro-batches of a block keep their order.
  bool swap_runs(Index row, Index a, Index mid, Index b) {
    auto again = [&](Index i, Index from) { return i > from && seq_[i] / N_ == seq_[i - 1] / N_; };  // runs may be long
    for (Index i = a; i < mid; ++i)
      for (Index j = mid; j < b && !again(i, a); ++j)
        if (!again(j, mid) && seq_[i] / N_ == seq_[j] / N_) return false;
    std::vector<Node> now(seq_.begin() + mid, seq_.begin() + b);
    now.insert(now.end(), seq_.begin() + a, seq_.begin() + mid);
    bool several = false;
    for (Node v : now) several = several || places_[v / N_].size() > 1;
    if (several && !fix_other_rows(row, a, mid, b)) return false;
    replace(row, a, now);
    return true;
  }

  bool fix_other_rows(Index row, Index a, Index mid, Index b) {
    for (Index other = 0; other < R_; ++other) {
      if (other == row) continue;
      const Index length = begin_[other + 1] - begin_[other];
      Index first = INT32_MAX, last = INT32_MIN, shift = INT32_MAX;
      for (Index i = a; i < b; ++i)
        for (const Place& there : places_[seq_[i] / N_])
          if (there.row == other) {  // in the period of `other` that has the micro-batch
            const Index ahead = offset_[there.offset] - offset_[place(seq_[i], row)];
            if (shift == INT32_MAX) shift = ahead;
            const Index at = pos_[there.offset + seq_[i] % N_] + length * (shift - ahead);
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
      for (Index i = first; i <= last; ++i) {
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
  bool time_again(Time limit) {
    if (cyclic_) return cycles(limit);
    if (!pools_.empty()) {
      old_start_.clear();
      const std::vector<Time> was = start_;
      if (simulate(limit)) { makespan_ = end(last_to_end()); return true; }
      start_ = was;
      return false;
    }
    Index low = INT32_MAX, high = -1;
    auto reach = [&](Node v) { low = std::min(low, at_[v]); high = std::max(high, at_[v]); };
    for (const Segment& segment : undo_) {
      reach(segment.before.front());
      for (Node v : segment.before) {
        reach(v);
        for (Index a : sent_[v / N_]) if (v % N_ + arcs_[a].distance < N_) reach(transfer(a, v % N_));
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
      at_[queue_[i]] = low + static_cast<Index>(i);
    }
    auto touch = [&](Node w) { dirty_[at_[w] >> 6] |= std::uint64_t{1} << (at_[w] & 63); };
    for (Index i = low; i <= high; ++i) dirty_[i >> 6] |= std::uint64_t{1} << (i & 63);
    for (const Segment& segment : undo_)  // what follows a segment has another predecessor
      for (std::size_t k = 0; k < segment.before.size(); ++k) {
        const Node v = seq_[segment.from + k];
        if (k + 1 == segment.before.size()) after(v, touch);
        for (Index a : sent_[v / N_]) if (v % N_ + arcs_[a].distance < N_) after(transfer(a, v % N_), touch);
      }
    bool within = true;
    for (std::size_t word = low >> 6; word < dirty_.size(); ++word)
      while (dirty_[word]) {
        const std::size_t i = word * 64 + __builtin_ctzll(dirty_[word]);
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
    makespan_ = end(last_to_end());  // what is not timed again may end after `limit`, too
    return makespan_ <= limit;
  }

  void take_back() {
    if (cyclic_) {
      seq_ = old_seq_;
      offset_ = old_offset_;
      for (Index r = 0; r < R_; ++r) note_positions(begin_[r], begin_[r + 1], r);
    }
    for (std::size_t k = undo_.size(); k-- > 0;) {
      const Segment segment = std::move(undo_[k]);
      std::copy(segment.before.begin(), segment.before.end(), seq_.begin() + segment.from);
      note_positions(segment.from, segment.from + static_cast<Index>(segment.before.size()), segment.row);
      relink(segment.row);
    }
    for (std::size_t i = 0; i < old_topo_.size(); ++i) {
      topo_[old_topo_from_ + i] = old_topo_[i];
      at_[old_topo_[i]] = old_topo_from_ + static_cast<Index>(i);
    }
    for (std::size_t i = old_start_.size(); i-- > 0;) start_[old_start_[i].first] = old_start_[i].second;
    overflow_ = old_overflow_;
    forget();
  }

  void find_path() {
    path_.clear();
    Node v = last_to_end();
    while (v >= 0) {
      Node previous = -1;
      Index row = -1;
      before(v, [&](Node u, Time at, Index of) { if (previous < 0 && at == start_[v]) previous = u, row = of; });
      if (previous < 0 && v < operations_ && !pools_.empty()) previous = cause_[v];
      if (row >= 0) path_.push_back({v, row});
      v = previous;
    }
    path_known_ = true;
  }

  // Takes an operation of several rows to the time of another one in `row`, in all of its rows at once; not beyond the
  // micro-batches of its block beside it.
  bool shift(Node v, Index row, Random& random) {
    const Index far = 1 + random.below(1 << (1 + random.below(5)));
    const bool later = random.below(2) == 1;
    const Index goal = pos_[place(v, row) + v % N_] + (later ? far : -far);
    const Time time = start_[seq_[std::clamp(goal, begin_[row], begin_[row + 1] - 1)]];
    bool moved = false;
    for (const Place& here : places_[v / N_]) {
      const Index at = pos_[here.offset + v % N_];
      Index to = at;
      auto passes = [&](Index i) {
        return seq_[i] / N_ != v / N_ && (later ? start_[seq_[i]] <= time : start_[seq_[i]] >= time);
      };
      while (later && to + 1 < begin_[here.row + 1] && passes(to + 1)) ++to;
      while (!later && to > begin_[here.row] && passes(to - 1)) --to;
      if (to == at) continue;
      std::vector<Node> now(seq_.begin() + std::min(at, to), seq_.begin() + std::max(at, to) + 1);
      std::rotate(now.begin(), later ? now.begin() + 1 : now.end() - 1, now.end());
      replace(here.row, std::min(at, to), now);
      moved = true;
    }
    return moved;
  }

  // A move: two neighbouring runs of a row change places, mostly where the critical path goes from one into the other.
  bool propose(Random& random) {
    if (!path_known_) find_path();
    const Index what = random.below(16);
    Index row, mid;
    if (path_.empty() || what == 0) {
      mid = random.below(static_cast<Index>(seq_.size()));
      row = static_cast<Index>(std::upper_bound(begin_.begin(), begin_.end(), mid) - begin_.begin()) - 1;
    } else {
      const Step step = path_[random.below(static_cast<Index>(path_.size()))];
      row = step.row;
      mid = pos_[place(step.node, row) + step.node % N_];
    }
    if (several_ && random.below(4) == 0)
      for (Index i = mid; i >= std::max(begin_[row], mid - 1); --i)
        if (places_[seq_[i] / N_].size() > 1) return shift(seq_[i], row, random);
    if (ring_) {  // where a period begins is open: half of it is on either side
      const Index half = (begin_[row + 1] - begin_[row]) / 2;
      turn(row, mid - begin_[row] - half);
      mid = begin_[row] + half;
    }
    if (mid == begin_[row]) return false;
    Index a = mid - 1, b = mid + 1;
    const Index left = begin_[row], right = begin_[row + 1];
    auto alike = [&](Index i, Index j) { return seq_[i] / N_ == seq_[j] / N_; };
    if (what >= 14) {  // any two runs
      a = std::max(left, mid - 1 - random.below(6));
      b = std::min(right, mid + 1 + random.below(6));
    } else if (what >= 11) {  // runs of one block
      while (what != 12 && a > left && alike(a - 1, a)) --a;
      while (what != 13 && b < right && alike(b, mid)) ++b;
    } else if (what >= 8) {  // one of the two neighbours goes further
      const Index far = 1 + random.below(1 << (1 + random.below(5)));
      if (random.below(2)) a = std::max(left, mid - far); else b = std::min(right, mid + far);
    }
    return swap_runs(row, a, mid, b);
  }

  std::int64_t anneal(std::int64_t evaluations, double hot, double cold, double penalty, std::uint64_t seed) {
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
      const bool moved = propose(random);
      if (!(random.below(4) == 0 && propose(random)) && !moved) { if (cyclic_ || !undo_.empty()) take_back(); continue; }
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
};

}  // namespace

extern "C" {
int weft_version() { return kVersion; }
Kernel* weft_new(const Instance* instance) { return new Kernel(*instance); }
void weft_delete(Kernel* kernel) { delete kernel; }
int weft_set(Kernel* kernel, const Node* rows) { return kernel->set(rows) ? 1 : 0; }
Time weft_makespan(const Kernel* kernel) { return kernel->makespan_; }
double weft_overflow(const Kernel* kernel) { return kernel->overflow_; }
Time weft_best(const Kernel* kernel) { return kernel->best_; }
void weft_best_rows(const Kernel* kernel, Node* rows) {
  std::copy(kernel->best_seq_.begin(), kernel->best_seq_.end(), rows);
}
void weft_starts(const Kernel* kernel, Time* starts) {
  std::copy(kernel->start_.begin(), kernel->start_.begin() + kernel->operations_, starts);
}
void weft_back_to_best(Kernel* kernel) { kernel->back_to_best(); }
std::int64_t weft_anneal(Kernel* kernel, std::int64_t evaluations, double hot, double cold, double penalty,
                         std::uint64_t seed) {
  return kernel->anneal(evaluations, hot, cold, penalty, seed);
}
}
