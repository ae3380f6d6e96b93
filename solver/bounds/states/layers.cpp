// The search over states, compiled: layers.py says what each step means, and runs where there is no binary; tests compare
// the numbers of both. weft/solver/bounds/states/native.py calls the functions at the end.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace {

using Time = std::int64_t;
using Short = std::int32_t;  // a time that is kept: native.py sees to it that none needs more
constexpr Time kLater = Time{1} << 60;
constexpr Short kLongAgo = -(Short{1} << 30);
constexpr std::size_t kCompared = 16;

// A system as in system.py; rows of lists one after another, from `_begin` on.
struct System {
  Time blocks, micro_batches, machines, limited, waits, ends;
  const Time *duration, *spent, *head, *tail, *machine_begin, *machine, *mate_begin, *mate;
  const Time *source, *target, *lag, *distance, *ranked, *change, *take, *capacity, *reach, *mixed;
};

// States of one layer, a row each: `ends` has blocks x last ends, then the last start.
struct Layer {
  std::vector<std::uint16_t> counts;
  std::vector<Short> times;
  std::vector<Time> bound;
  std::vector<std::int32_t> parent;
  std::vector<std::uint16_t> added;
};

class Layers {
 public:
  explicit Layers(const System& system)
      : s_(system), b_(system.blocks), n_(system.micro_batches), e_(system.ends), width_(b_ * e_ + 1),
        start_(b_), least_(b_), runnable_(b_), there_(system.waits), apart_(system.waits), awaited_(b_ * e_),
        counts_(b_), times_(width_), into_(b_), holding_(s_.limited), taking_(s_.limited) {
    for (Time w = 0; w < s_.waits; ++w) if (s_.distance[w] == 0) into_[s_.target[w]].push_back(w);
    for (Time m = 0; m < s_.machines; ++m)
      machine_.emplace_back(s_.machine + s_.machine_begin[m], s_.machine + s_.machine_begin[m + 1]);
    for (Time d = 0; d < s_.limited; ++d)
      for (Time i = 0; i < b_; ++i) {
        if (s_.change[d * b_ + i]) holding_[d].push_back(i);
        if (s_.take[d * b_ + i]) taking_[d].push_back(i);
      }
  }

  // The number of states of the next layer with a bound below `upper`; the least of their bounds goes to `least`.
  Time next(Time upper, Time* least) {
    Layer fresh;
    if (trace_.empty()) {
      std::fill(counts_.begin(), counts_.end(), 0);
      std::fill(times_.begin(), times_.end(), kLongAgo);
      times_.back() = 0;
      add(fresh, upper, 0, 0);
    } else {
      const Time states = size(layer_);
      std::vector<Time> starts;
      for (Time row = 0; row < states; ++row) {
        load(layer_, row);
        look();
        starts.clear();
        for (Time i = 0; i < b_; ++i) starts.push_back(runnable_[i] ? start_[i] : -1);
        for (Time i = 0; i < b_; ++i) {
          if (starts[i] < 0) continue;
          const Time end = starts[i] + s_.duration[i * n_ + counts_[i]];
          if (end + s_.tail[i * n_ + counts_[i]] >= upper) continue;
          const Short now = times_.back();
          Short* ends = &times_[i * e_];
          kept_.assign(ends, ends + e_);
          std::copy_backward(ends, ends + e_ - 1, ends + e_);
          ends[0] = static_cast<Short>(end), times_.back() = static_cast<Short>(starts[i]), ++counts_[i];
          add(fresh, upper, row, i);
          std::copy(kept_.begin(), kept_.end(), ends);
          times_.back() = now, --counts_[i];
        }
      }
    }
    keep(fresh);
    *least = size(layer_) ? *std::min_element(layer_.bound.begin(), layer_.bound.end()) : 0;
    trace_.push_back({layer_.parent, layer_.added});
    return size(layer_);
  }

  // Only the `most` states of the last layer with the least bounds stay, those with the least sums of times first.
  void narrow(Time most) {
    if (size(layer_) <= most) return;
    std::vector<Time> sum;
    for (Time row = 0; row < size(layer_); ++row)
      sum.push_back(total(layer_, row));
    std::vector<std::uint32_t> ranked(sum.size());
    std::iota(ranked.begin(), ranked.end(), 0u);
    std::stable_sort(ranked.begin(), ranked.end(), [&](std::uint32_t one, std::uint32_t other) {
      return layer_.bound[one] != layer_.bound[other] ? layer_.bound[one] < layer_.bound[other] : sum[one] < sum[other];
    });
    Layer kept;
    for (Time place = 0; place < most; ++place) take(&kept, layer_, ranked[place]);
    layer_ = std::move(kept);
    trace_.back() = {layer_.parent, layer_.added};
  }

  // The blocks of the best state of the last layer, in order of start.
  void sequence(std::int32_t* blocks) const {
    std::size_t row = std::min_element(layer_.bound.begin(), layer_.bound.end()) - layer_.bound.begin();
    for (std::size_t depth = trace_.size() - 1; depth > 0; --depth) {
      blocks[depth - 1] = trace_[depth].added[row];
      row = trace_[depth].parent[row];
    }
  }

 private:
  struct Step {
    std::vector<std::int32_t> parent;
    std::vector<std::uint16_t> added;
  };

  static Time size(const Layer& layer) { return static_cast<Time>(layer.bound.size()); }

  // The sum of the times of the state of `row`.
  Time total(const Layer& layer, std::size_t row) const {
    return std::accumulate(&layer.times[row * width_], &layer.times[row * width_] + width_, Time{0});
  }

  void load(const Layer& layer, Time row) {
    std::copy_n(&layer.counts[row * b_], b_, counts_.begin());
    std::copy_n(&layer.times[row * width_], width_, times_.begin());
  }

  // StateLayers._outlook: the state's starts and runnable blocks; the bound.
  Time look() {
    const Time now = times_.back();
    for (Time i = 0; i < b_; ++i) {
      Time start = std::max(now, s_.head[i * n_ + std::min<Time>(counts_[i], n_ - 1)]);
      for (Time k = s_.mate_begin[i]; k < s_.mate_begin[i + 1]; ++k)
        start = std::max<Time>(start, times_[s_.mate[k] * e_]);
      start_[i] = start, runnable_[i] = counts_[i] < n_;
    }
    for (Time d = 0; d < s_.limited; ++d) {
      Time level = 0;
      for (const Time i : holding_[d]) level += s_.change[d * b_ + i] * counts_[i];
      for (const Time i : taking_[d]) if (level + s_.take[d * b_ + i] > s_.capacity[d]) runnable_[i] = 0;
    }
    for (Time w = 0; w < s_.waits; ++w) {
      const Time i = s_.source[w], j = s_.target[w], wanted = counts_[j] - s_.distance[w];
      const Time since = counts_[i] - 1 - wanted;
      there_[w] = wanted < 0 || wanted >= n_ || since >= 0;
      if (!there_[w]) {
        runnable_[j] = 0;
        apart_[w] = s_.lag[w] + s_.spent[i * (n_ + 1) + wanted + 1] - s_.spent[i * (n_ + 1) + counts_[i]];
        if (s_.distance[w]) start_[j] = std::max(start_[j], start_[i] + apart_[w]);
      } else if (wanted >= 0 && since >= 0 && since < e_) {
        start_[j] = std::max(start_[j], times_[i * e_ + since] + s_.lag[w]);
      }
    }
    least_ = start_;
    for (Time place = 0; place < b_; ++place) {
      const Time j = s_.ranked[place];
      for (const Time w : into_[j])
        if (!there_[w]) least_[j] = std::max(least_[j], least_[s_.source[w]] + apart_[w]);
    }
    Time bound = now;
    for (Time i = 0; i < b_; ++i) {
      const Time latest = times_[i * e_], ran = counts_[i];
      if (latest > now) bound = std::max(bound, latest + s_.tail[i * n_ + std::max<Time>(ran - 1, 0)]);
      if (ran < n_) bound = std::max(bound, least_[i] + s_.duration[i * n_ + ran] + s_.tail[i * n_ + ran]);
    }
    for (const auto& machine : machine_) {
      Time first = kLater, work = 0, last = kLater;
      for (const Time i : machine) {
        if (counts_[i] >= n_) continue;
        first = std::min(first, least_[i]), last = std::min(last, s_.tail[i * n_ + n_ - 1]);
        work += s_.spent[i * (n_ + 1) + n_] - s_.spent[i * (n_ + 1) + counts_[i]];
      }
      if (first < kLater) bound = std::max(bound, first + work + last);
    }
    return bound;
  }

  // Add the state that is loaded, if its bound is below `upper`, with times that no longer matter made equal.
  void add(Layer& layer, Time upper, Time parent, Time block) {
    const Time bound = look();
    if (bound >= upper) return;
    std::fill(awaited_.begin(), awaited_.end(), 0);
    for (Time w = 0; w < s_.waits; ++w) {
      const Time i = s_.source[w], j = s_.target[w];
      if (counts_[j] >= n_) continue;
      const Time places = std::min(e_, counts_[i] - (counts_[j] - s_.distance[w]));
      for (Time place = 0; place < places; ++place) awaited_[i * e_ + place] = 1;
    }
    const Short now = times_.back();
    layer.counts.insert(layer.counts.end(), counts_.begin(), counts_.end());
    for (Time i = 0; i < b_; ++i)
      for (Time place = 0; place < e_; ++place) {
        const Short end = times_[i * e_ + place], past = now - static_cast<Short>(s_.reach[i]);
        const bool matters = awaited_[i * e_ + place] || (place == 0 && end > now);
        layer.times.push_back(matters ? std::max(end, past) : past);
      }
    layer.times.push_back(now);
    layer.bound.push_back(bound);
    layer.parent.push_back(static_cast<std::int32_t>(parent));
    layer.added.push_back(static_cast<std::uint16_t>(block));
  }

  // _needed: what is left of `fresh` becomes the layer.
  void keep(const Layer& fresh) {
    const std::size_t states = fresh.bound.size();
    std::vector<Time> key(states), sum(states);
    std::vector<std::uint32_t> ranked(states);
    std::iota(ranked.begin(), ranked.end(), 0u);
    for (std::size_t row = 0; row < states; ++row) {
      std::uint64_t mixed = 0;
      for (Time i = 0; i < b_; ++i)
        mixed += static_cast<std::uint64_t>(fresh.counts[row * b_ + i]) * static_cast<std::uint64_t>(s_.mixed[i]);
      key[row] = static_cast<Time>(mixed);
      sum[row] = total(fresh, row);
    }
    std::sort(ranked.begin(), ranked.end(), [&](std::uint32_t one, std::uint32_t other) {
      if (key[one] != key[other]) return key[one] < key[other];
      return sum[one] != sum[other] ? sum[one] < sum[other] : one < other;
    });
    layer_ = Layer();
    std::vector<std::uint32_t> leaders;
    for (std::size_t place = 0; place < states; ++place) {
      const std::uint32_t row = ranked[place];
      if (place == 0 || key[row] != key[ranked[place - 1]]) leaders.clear();
      if (std::any_of(leaders.begin(), leaders.end(), [&](std::uint32_t leader) {
            return std::equal(&fresh.counts[row * b_], &fresh.counts[row * b_] + b_, &fresh.counts[leader * b_]) &&
                   std::equal(&fresh.times[row * width_], &fresh.times[row * width_] + width_,
                              &fresh.times[leader * width_], [](Short own, Short its) { return its <= own; });
          })) continue;
      if (leaders.size() < kCompared) leaders.push_back(row);
      take(&layer_, fresh, row);
    }
  }

  // The state of `row` of `from` in `layer`, too.
  void take(Layer* layer, const Layer& from, std::uint32_t row) const {
    layer->counts.insert(layer->counts.end(), &from.counts[row * b_], &from.counts[row * b_] + b_);
    layer->times.insert(layer->times.end(), &from.times[row * width_], &from.times[row * width_] + width_);
    layer->bound.push_back(from.bound[row]);
    layer->parent.push_back(from.parent[row]);
    layer->added.push_back(from.added[row]);
  }

  const System s_;
  const Time b_, n_, e_, width_;
  std::vector<Time> start_, least_;
  std::vector<char> runnable_, there_;
  std::vector<Time> apart_;
  std::vector<char> awaited_;
  std::vector<Time> counts_;
  std::vector<Short> times_, kept_;
  std::vector<std::vector<Time>> into_, holding_, taking_, machine_;
  Layer layer_;
  std::vector<Step> trace_;
};

}  // namespace

extern "C" {
// The arrays of the system are the caller's, and stay where they are.
void* weft_states_new(const System* system) { return new Layers(*system); }
void weft_states_delete(void* layers) { delete static_cast<Layers*>(layers); }
std::int64_t weft_states_next(void* layers, std::int64_t upper, std::int64_t* least) {
  return static_cast<Layers*>(layers)->next(upper, least);
}
void weft_states_narrow(void* layers, std::int64_t most) { static_cast<Layers*>(layers)->narrow(most); }
void weft_states_sequence(const void* layers, std::int32_t* blocks) {
  static_cast<const Layers*>(layers)->sequence(blocks);
}
}
