// A decision in plain words.

import { duration } from "./dom.js";
import { isKnown, say } from "./words.js";

/** Milliseconds as people read them. */
export const ms = (value) => (value === null || value === undefined ? "–" : duration(Math.max(0, value) / 1000));

/** What was decided, and why. */
export function sentence(made) {
  return made.kind === "batch" ? ofBatch(made) : say("of_request", made) + ofRequest(made);
}

function ofBatch(made) {
  const values = { batch: made.batch, size: made.size, slot: made.slot, queued: made.queued ?? 0, left: ms(made.left_ms) };
  const parts = [say("batch_is", values) + say(made.reason, values)];
  if (made.ms) parts.push(say("took_ms", { predicted: ms(made.predicted_ms), actual: ms(made.ms) }));
  if (isKnown(`end_${made.end}`)) parts.push(say(`end_${made.end}`, { members: made.members ?? 0, of: made.of_members ?? 0 }));
  return parts.join(" ");
}

function ofRequest(made) {
  const { kind, reason, limit_ms: limit, predicted_ms: predicted, actual_ms: actual = 0 } = made;
  const parts = [];
  if (kind === "refused" || kind === "failed") {
    const key = [`refused_${reason}`, `failed_${reason}`].find(isKnown);
    parts.push(key ? say(key) : `${made.status} ${reason}.`);
    const left = limit === undefined ? undefined : limit - actual;
    if (made.batch !== undefined) parts.push(say("in_batch", { batch: made.batch, predicted: ms(predicted) }));
    else if (predicted !== undefined && left !== undefined)
      parts.push(say("would_have", { predicted: ms(predicted), left: ms(left), limit: ms(limit) }));
    parts.push(say("after", { actual: ms(actual) }));
    return parts.join(" ");
  }
  const why = isKnown(`why_${reason}`) ? say(`why_${reason}`) : reason;
  if (kind === "partial") parts.push(say("partial_is", { members: made.members ?? 0, of: made.of_members ?? 0 }) + why);
  else if (kind === "fallback") parts.push(say("fallback_is") + why);
  else if (kind === "joined") parts.push(say(made.batch === undefined ? "joined_plain" : "joined_is", made));
  else if (kind === "stored") parts.push(say("stored_is"));
  else parts.push(say("late_is", { over: ms(actual - limit) }));
  if (limit !== undefined) parts.push(say("took_of", { actual: ms(actual), limit: ms(limit) }));
  if (kind !== "joined" && kind !== "stored" && made.batch !== undefined)
    parts.push(say("in_batch", { batch: made.batch, predicted: ms(predicted) }));
  return parts.join(" ");
}
