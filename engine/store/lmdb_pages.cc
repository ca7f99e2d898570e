// SPDX-License-Identifier: Apache-2.0
#include "engine/store/lmdb_pages.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <span>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/store/file.h"

namespace cowshed::engine {
namespace {

// The layout of LMDB 0.9 (data version 1) on a machine of 64 bits.
constexpr uint32_t kMagic = 0xBEEFC0DE;
constexpr uint32_t kDataVersion = 1;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kHeaderBytes = 16;
constexpr uint64_t kNodeHeaderBytes = 8;
constexpr uint64_t kNoRoot = UINT64_MAX;
constexpr uint64_t kFirstPage = 2;  // behind the two meta pages
constexpr uint16_t kBranch = 1, kLeaf = 2, kOverflow = 4, kMeta = 8;
constexpr uint16_t kBigData = 1, kSubData = 2;
constexpr uint16_t kMaxDepth = 32;  // of LMDB's cursors
constexpr size_t kMaxFindings = 100;

struct PageHeader {
  uint64_t number = 0;
  uint16_t pad = 0;
  uint16_t flags = 0;
  uint16_t lower = 0;  // end of the offsets; of an overflow page with `upper` its length in pages
  uint16_t upper = 0;  // begin of the nodes

  uint32_t overflow_pages() const { return lower | uint32_t{upper} << 16; }
};
static_assert(sizeof(PageHeader) == kHeaderBytes);

struct Database {
  uint32_t pad = 0;  // of the free list: the page size
  uint16_t flags = 0;
  uint16_t depth = 0;
  uint64_t branch_pages = 0;
  uint64_t leaf_pages = 0;
  uint64_t overflow_pages = 0;
  uint64_t entries = 0;
  uint64_t root = 0;
};
static_assert(sizeof(Database) == 48);

struct MetaPage {
  uint32_t magic = 0;
  uint32_t version = 0;
  uint64_t address = 0;
  uint64_t map_bytes = 0;
  Database free_list;
  Database tables;
  uint64_t last_page = 0;
  uint64_t txn = 0;
};
static_assert(sizeof(MetaPage) == 136);

template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(static_cast<void*>(&value), at, sizeof(T));
  return value;
}

using Page = std::array<std::byte, kPageBytes>;

// A node of a page, its bounds proved.
struct Node {
  uint16_t flags = 0;
  uint32_t data_bytes = 0;  // of a leaf
  uint64_t child = 0;       // of a branch
  std::string_view key;
  const std::byte* data = nullptr;
  uint64_t data_offset = 0;   // in the page
  uint64_t inline_bytes = 0;  // of data that lie in the page
};

Node NodeAt(const Page& page, uint64_t offset, bool branch) {
  const std::byte* const at = page.data() + offset;
  const auto low = Load<uint16_t>(at);
  const auto high = Load<uint16_t>(at + 2);
  Node node;
  node.flags = Load<uint16_t>(at + 4);
  const auto key_bytes = Load<uint16_t>(at + 6);
  node.data_bytes = low | uint32_t{high} << 16;
  node.child = low | uint64_t{high} << 16 | uint64_t{node.flags} << 32;
  node.key = {reinterpret_cast<const char*>(at + kNodeHeaderBytes), key_bytes};
  node.data_offset = offset + kNodeHeaderBytes + key_bytes;
  node.data = page.data() + node.data_offset;
  const bool big = (node.flags & kBigData) != 0;
  node.inline_bytes = branch ? 0 : big ? sizeof(uint64_t) : node.data_bytes;
  return node;
}

// What keeps a page from being believed; empty if nothing does.
std::string_view Fault(const Page& page, uint64_t number, bool branch) {
  const auto header = Load<PageHeader>(page.data());
  if (header.number != number) return "has another number";
  if (header.flags != (branch ? kBranch : kLeaf)) return "is of another kind";
  if (header.lower < kHeaderBytes || header.lower % 2 != 0 || header.upper > kPageBytes ||
      header.lower > header.upper) {
    return "has wrong bounds";
  }
  const size_t count = (header.lower - kHeaderBytes) / 2;
  if (count < (branch ? 2u : 1u)) return "has too few nodes";
  std::vector<uint16_t> offsets(count);
  std::memcpy(offsets.data(), page.data() + kHeaderBytes, count * 2);
  std::sort(offsets.begin(), offsets.end());
  // LMDB moves nodes together whenever one goes: in a leaf they leave no gap. In a branch one
  // remains where a key of odd length got shorter by one byte.
  uint64_t expected = header.upper;
  for (const uint16_t offset : offsets) {
    const bool fits = branch ? offset >= expected : offset == expected;
    if (!fits || offset + kNodeHeaderBytes > kPageBytes) {
      return "has nodes that overlap or leave a gap";
    }
    const Node node = NodeAt(page, offset, branch);
    const uint64_t bytes = kNodeHeaderBytes + node.key.size() + node.inline_bytes;
    expected = offset + bytes + bytes % 2;
    if (expected > kPageBytes) return "has a node that does not fit";
  }
  return branch || expected == kPageBytes ? "" : "has nodes that overlap or leave a gap";
}

// One look at a file: the two meta pages, then trees.
class Walker {
 public:
  Walker(const File& file, uint64_t file_bytes, const std::function<void(const LmdbEntry&)>& visit)
      : file_(file), pages_in_file_(file_bytes / kPageBytes), visit_(visit) {}

  absl::StatusOr<LmdbReport> Walk() {
    ASSIGN_OR_RETURN(const std::optional<MetaPage> meta, NewestMeta());
    if (!meta.has_value()) return std::move(report_);
    RETURN_IF_ERROR(WalkDatabase(meta->free_list, Kind::kFreeList, "free list"));
    const uint64_t before = report_.total_findings;
    RETURN_IF_ERROR(WalkDatabase(meta->tables, Kind::kTables, "tables"));
    report_.readable = !tables_.empty() || report_.total_findings == before;
    for (const auto& [name, database] : tables_) {
      RETURN_IF_ERROR(WalkDatabase(database, Kind::kTable, name));
    }
    return std::move(report_);
  }

  absl::Status CheckRoots() {
    ASSIGN_OR_RETURN(const std::optional<MetaPage> meta, NewestMeta());
    if (meta.has_value()) {
      RETURN_IF_ERROR(WalkDatabase(meta->tables, Kind::kTables, "tables"));
      for (const auto& [name, database] : tables_) RETURN_IF_ERROR(CheckRoot(database, name));
    }
    return report_.total_findings == 0
               ? absl::OkStatus()
               : absl::DataLossError(StrCat("the metadata's page structure is damaged: ",
                                            report_.findings.front()));
  }

 private:
  enum class Kind : uint8_t { kFreeList, kTables, kTable };
  struct Tree {
    Kind kind;
    const std::string& name;
    Database counted;
    std::optional<std::string> last_key;
  };
  // Keys below a branch node: from `low` on, and before `high`.
  struct Range {
    std::optional<std::string> low, high;
  };

  void Add(std::string finding) {
    ++report_.total_findings;
    if (report_.findings.size() < kMaxFindings) report_.findings.push_back(std::move(finding));
  }
  void AddIn(const std::string& name, std::string finding) {
    report_.torn.insert(name);
    Add(StrCat(name, ": ", finding));
  }

  // False, with a finding, where the file ends before it.
  absl::StatusOr<bool> ReadPages(uint64_t number, std::span<std::byte> out) {
    if (number >= pages_in_file_ || out.size() / kPageBytes > pages_in_file_ - number) return false;
    RETURN_IF_ERROR(file_.Read(number * kPageBytes, out));
    return true;
  }

  absl::StatusOr<std::optional<MetaPage>> ReadMeta(uint64_t number) {
    Page page;
    ASSIGN_OR_RETURN(const bool there, ReadPages(number, page));
    const auto header = Load<PageHeader>(page.data());
    const auto meta = Load<MetaPage>(page.data() + kHeaderBytes);
    const bool good = there && header.number == number && header.flags == kMeta &&
                      meta.magic == kMagic && meta.version == kDataVersion &&
                      meta.free_list.pad == kPageBytes && meta.last_page >= 1 &&
                      (meta.txn == 0 || meta.txn % 2 == number);
    if (good) return meta;
    Add(StrCat("meta page ", number, " is not one"));
    return std::nullopt;
  }

  // Each commit writes the older of the two, so they are one commit apart.
  absl::StatusOr<std::optional<MetaPage>> NewestMeta() {
    ASSIGN_OR_RETURN(const std::optional<MetaPage> first, ReadMeta(0));
    ASSIGN_OR_RETURN(const std::optional<MetaPage> second, ReadMeta(1));
    // One alone may be the older one, and what it leads to half overwritten.
    if (!first.has_value() || !second.has_value()) return std::nullopt;
    const bool first_is_newer = first->txn > second->txn;
    const MetaPage& newer = first_is_newer ? *first : *second;
    const MetaPage& older = first_is_newer ? *second : *first;
    if (newer.txn - older.txn > 1) {
      Add(StrCat("the meta pages are of commits ", older.txn, " and ", newer.txn));
      return std::nullopt;
    }
    if (newer.last_page >= pages_in_file_) Add("the file ends before its last page");
    last_page_ = newer.last_page;
    report_.last_txn = newer.txn;
    used_.assign(std::min(last_page_ + 1, pages_in_file_), false);
    return newer;
  }

  // Takes pages [number, number + count): each may be taken once.
  bool Take(const std::string& name, uint64_t number, uint64_t count) {
    if (number < kFirstPage || number > last_page_ || count > last_page_ + 1 - number ||
        number + count > used_.size()) {
      AddIn(name, StrCat("page ", number, " lies outside the file"));
      return false;
    }
    for (uint64_t page = number; page < number + count; ++page) {
      if (used_[page]) {
        AddIn(name, StrCat("page ", page, " is used twice"));
        return false;
      }
      used_[page] = true;
    }
    report_.pages += count;
    return true;
  }

  absl::Status CheckRoot(const Database& database, const std::string& name) {
    if (database.root == kNoRoot && database.depth == 0) return absl::OkStatus();
    Page page;
    if (!Take(name, database.root, 1)) return absl::OkStatus();
    ASSIGN_OR_RETURN(const bool there, ReadPages(database.root, page));
    const std::string_view fault =
        there ? Fault(page, database.root, database.depth > 1) : "lies behind the file";
    if (!fault.empty()) AddIn(name, StrCat("page ", database.root, " ", fault));
    return absl::OkStatus();
  }

  absl::Status WalkDatabase(const Database& database, Kind kind, const std::string& name) {
    Tree tree{kind, name, {}, std::nullopt};
    const uint64_t before = report_.total_findings;
    if (database.root != kNoRoot) {
      if (database.depth == 0 || database.depth > kMaxDepth) {
        AddIn(name, "has a wrong depth");
        return absl::OkStatus();
      }
      RETURN_IF_ERROR(Visit(tree, database.root, database.depth, Range()));
    } else if (database.depth != 0) {
      AddIn(name, "has a depth and no root");
    }
    const Database& counted = tree.counted;
    if (before == report_.total_findings && (counted.branch_pages != database.branch_pages ||
                                             counted.leaf_pages != database.leaf_pages ||
                                             counted.overflow_pages != database.overflow_pages ||
                                             counted.entries != database.entries)) {
      // Everything was reached: nothing is torn.
      Add(StrCat(name, ": the counts are not what is there"));
    }
    return absl::OkStatus();
  }

  // `depth`: of the subtree, 1 for a leaf.
  absl::Status Visit(Tree& tree, uint64_t number, uint16_t depth, const Range& range) {
    if (!Take(tree.name, number, 1)) return absl::OkStatus();
    const auto page = std::make_unique<Page>();
    ASSIGN_OR_RETURN(const bool there, ReadPages(number, *page));
    const bool branch = depth > 1;
    const std::string_view fault = there ? Fault(*page, number, branch) : "lies behind the file";
    if (!fault.empty()) {
      AddIn(tree.name, StrCat("page ", number, " ", fault));
      return absl::OkStatus();
    }
    ++(branch ? tree.counted.branch_pages : tree.counted.leaf_pages);
    const auto header = Load<PageHeader>(page->data());
    const size_t count = (header.lower - kHeaderBytes) / 2;
    std::vector<Node> nodes;
    for (size_t i = 0; i < count; ++i) {
      nodes.push_back(NodeAt(*page, Load<uint16_t>(page->data() + kHeaderBytes + i * 2), branch));
    }
    return branch ? VisitBranch(tree, number, depth, range, nodes)
                  : VisitLeaf(tree, number, range, nodes);
  }

  // The keys of the free list are numbers of 8 bytes in the machine's order.
  static bool Less(Kind kind, std::string_view a, std::string_view b) {
    if (kind == Kind::kFreeList && a.size() == 8 && b.size() == 8) {
      return Load<uint64_t>(reinterpret_cast<const std::byte*>(a.data())) <
             Load<uint64_t>(reinterpret_cast<const std::byte*>(b.data()));
    }
    return a < b;
  }

  absl::Status VisitBranch(Tree& tree, uint64_t number, uint16_t depth, const Range& range,
                           const std::vector<Node>& nodes) {
    for (size_t i = 0; i < nodes.size(); ++i) {
      Range below = range;
      // The first key of a branch means "everything before the second".
      if (i > 0) below.low = std::string(nodes[i].key);
      if (i + 1 < nodes.size()) below.high = std::string(nodes[i + 1].key);
      if (below.low.has_value() && below.high.has_value() &&
          !Less(tree.kind, *below.low, *below.high)) {
        AddIn(tree.name, StrCat("page ", number, " has keys that do not rise"));
        continue;
      }
      RETURN_IF_ERROR(Visit(tree, nodes[i].child, depth - 1, below));
    }
    return absl::OkStatus();
  }

  absl::Status VisitLeaf(Tree& tree, uint64_t number, const Range& range,
                         const std::vector<Node>& nodes) {
    for (const Node& node : nodes) {
      const bool rises = !tree.last_key.has_value() || Less(tree.kind, *tree.last_key, node.key);
      if (node.key.empty() || !rises ||
          (range.low.has_value() && Less(tree.kind, node.key, *range.low)) ||
          (range.high.has_value() && !Less(tree.kind, node.key, *range.high))) {
        AddIn(tree.name, StrCat("page ", number, " has a key out of its place"));
        continue;
      }
      tree.last_key = std::string(node.key);
      ++tree.counted.entries;
      RETURN_IF_ERROR(VisitNode(tree, number, node));
    }
    return absl::OkStatus();
  }

  absl::Status VisitNode(Tree& tree, uint64_t number, const Node& node) {
    if (node.flags != (tree.kind == Kind::kTables ? kSubData : node.flags & kBigData)) {
      AddIn(tree.name, StrCat("page ", number, " has a node of another kind"));
      return absl::OkStatus();
    }
    std::string big;
    std::string_view value(reinterpret_cast<const char*>(node.data), node.data_bytes);
    uint64_t offset = number * kPageBytes + node.data_offset;
    if ((node.flags & kBigData) != 0) {
      const auto first = Load<uint64_t>(node.data);
      ASSIGN_OR_RETURN(const bool there, ReadOverflow(tree, first, node.data_bytes, &big));
      if (!there) return absl::OkStatus();
      value = big;
      offset = first * kPageBytes + kHeaderBytes;
    }
    switch (tree.kind) {
      case Kind::kFreeList:
        TakeFree(tree.name, value);
        break;
      case Kind::kTables:
        AddTable(node.key, value);
        break;
      case Kind::kTable:
        ++report_.entries;
        if (visit_) visit_({tree.name, node.key, value, offset});
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> ReadOverflow(Tree& tree, uint64_t first, uint32_t bytes, std::string* out) {
    const uint64_t needed = (kHeaderBytes + bytes - 1) / kPageBytes + 1;
    Page page;
    ASSIGN_OR_RETURN(const bool there, ReadPages(first, page));
    const auto header = Load<PageHeader>(page.data());
    if (!there || header.number != first || header.flags != kOverflow ||
        header.overflow_pages() < needed) {
      AddIn(tree.name, StrCat("overflow page ", first, " is not one of this length"));
      return false;
    }
    if (!Take(tree.name, first, header.overflow_pages())) return false;
    tree.counted.overflow_pages += header.overflow_pages();
    std::vector<std::byte> all(needed * kPageBytes);
    ASSIGN_OR_RETURN(const bool whole, ReadPages(first, all));
    if (!whole) {
      AddIn(tree.name, StrCat("overflow page ", first, " lies behind the file"));
      return false;
    }
    out->assign(reinterpret_cast<const char*>(all.data()) + kHeaderBytes, bytes);
    return true;
  }

  // A record of the free list: a count, then page numbers, falling.
  void TakeFree(const std::string& name, std::string_view value) {
    const auto* const at = reinterpret_cast<const std::byte*>(value.data());
    const uint64_t room = value.size() / sizeof(uint64_t);
    const uint64_t count = room > 0 ? Load<uint64_t>(at) : 0;
    if (room == 0 || count > room - 1) {
      AddIn(name, "a record is too short for its count");
      return;
    }
    uint64_t last = UINT64_MAX;
    for (uint64_t i = 1; i <= count; ++i) {
      const auto page = Load<uint64_t>(at + i * sizeof(uint64_t));
      if (page >= last) AddIn(name, StrCat("page ", page, " is out of its place"));
      if (!Take(name, page, 1)) return;
      last = page;
    }
  }

  void AddTable(std::string_view name, std::string_view value) {
    if (value.size() != sizeof(Database)) {
      AddIn(std::string(name), "its record has a wrong length");
      return;
    }
    const auto database = Load<Database>(reinterpret_cast<const std::byte*>(value.data()));
    if (database.flags != 0) AddIn(std::string(name), "has unknown flags");
    tables_.emplace_back(name, database);
  }

  const File& file_;
  const uint64_t pages_in_file_;
  const std::function<void(const LmdbEntry&)>& visit_;
  LmdbReport report_;
  uint64_t last_page_ = 0;
  std::vector<bool> used_;
  std::vector<std::pair<std::string, Database>> tables_;
};

}  // namespace

std::string LmdbReport::Summary() const {
  const std::string first = findings.empty() ? "it cannot be read" : findings.front();
  return total_findings > 1 ? StrCat(first, " (and ", total_findings - 1, " more)") : first;
}

absl::StatusOr<LmdbReport> WalkLmdb(const std::string& path,
                                    const std::function<void(const LmdbEntry&)>& visit) {
  ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                   OpenFile(path, /*create=*/false, /*read_only=*/true));
  ASSIGN_OR_RETURN(const uint64_t bytes, file->SizeBytes());
  return Walker(*file, bytes, visit).Walk();
}

absl::Status CheckLmdbRoots(const std::string& path) {
  const auto file = OpenFile(path, /*create=*/false, /*read_only=*/true);
  if (absl::IsNotFound(file.status())) return absl::OkStatus();
  RETURN_IF_ERROR(file.status());
  ASSIGN_OR_RETURN(const uint64_t bytes, (*file)->SizeBytes());
  const std::function<void(const LmdbEntry&)> nothing;
  return bytes == 0 ? absl::OkStatus() : Walker(**file, bytes, nothing).CheckRoots();
}

}  // namespace cowshed::engine
