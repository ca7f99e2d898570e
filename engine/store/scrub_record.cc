// SPDX-License-Identifier: Apache-2.0
#include "engine/store/scrub_record.h"

#include "engine/base/status_macros.h"
#include "engine/store/codec.h"

namespace cowshed::engine {

std::string ScrubRecord::Encode() const {
  Encoder encoder;
  encoder.Put(phase).Put(static_cast<uint8_t>(paused));
  encoder.Put(start_txg).Put(cursor_id).Put(cursor_block).Put(rate_bytes_per_second);
  encoder.Put(read_bytes).Put(errors).Put(finish_time_ms);
  encoder.Put(static_cast<uint16_t>(damaged.size()));
  for (const DamageRecord& damage : damaged) encoder.Put(damage);
  return encoder.Take();
}

absl::StatusOr<ScrubRecord> ScrubRecord::Decode(std::string_view bytes) {
  ScrubRecord record;
  uint8_t paused = 0;
  uint16_t count = 0;
  Decoder decoder(bytes);
  decoder.Get(&record.phase).Get(&paused);
  decoder.Get(&record.start_txg).Get(&record.cursor_id).Get(&record.cursor_block);
  decoder.Get(&record.rate_bytes_per_second).Get(&record.read_bytes).Get(&record.errors);
  decoder.Get(&record.finish_time_ms).Get(&count);
  for (uint16_t i = 0; i < count && decoder.ok(); ++i) {
    decoder.Get(&record.damaged.emplace_back());
  }
  record.paused = paused != 0;
  RETURN_IF_ERROR(decoder.Finish("scrub record"));
  return record;
}

}  // namespace cowshed::engine
