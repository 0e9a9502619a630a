// JSON Schema: what a body is made of, and a body to start from.

import { isObject } from "./json.js";

/** Follows references, and takes the first choice that is not null. */
function settle(schema, root) {
  let part = schema;
  for (let hops = 0; isObject(part) && hops < 32; hops += 1) {
    const choices = part.anyOf ?? part.oneOf;
    if (typeof part.$ref === "string") part = lookUp(root, part.$ref);
    else if (Array.isArray(choices)) part = choices.find((choice) => choice.type !== "null") ?? choices[0];
    else return part;
  }
  return {};
}

function lookUp(root, pointer) {
  const steps = decodeURIComponent(pointer).split("/").slice(1);
  return steps.reduce((part, step) => part?.[step.replaceAll("~1", "/").replaceAll("~0", "~")], root);
}

/** A value that fits the schema well enough to start editing from. */
export function sample(schema, root = schema, depth = 0) {
  if (!isObject(schema) || depth > 5) return null;
  if (schema.default !== undefined) return schema.default;
  const part = settle(schema, root);
  if (part.const !== undefined) return part.const;
  if (part.enum?.length) return part.enum[0];
  if (part.examples?.length) return part.examples[0];
  const type = [part.type].flat().find((name) => name !== "null");
  if (type === "object" || part.properties) {
    const fields = Object.entries(part.properties ?? {});
    return Object.fromEntries(fields.map(([name, field]) => [name, sample(field, root, depth + 1)]));
  }
  if (type === "array") return sampleList(part, root, depth);
  if (type === "string") return SAMPLES[part.format] ?? "";
  if (type === "integer" || type === "number") return part.minimum ?? 0;
  return type === "boolean" ? false : null;
}

function sampleList(part, root, depth) {
  if (part.prefixItems) return part.prefixItems.map((item) => sample(item, root, depth + 1));
  const length = Math.min(Math.max(part.minItems ?? 1, 1), 16);
  return Array.from({ length }, () => sample(part.items ?? {}, root, depth + 1));
}

const SAMPLES = {
  "date-time": "2030-01-31T12:00:00Z",
  date: "2030-01-31",
  time: "12:00:00Z",
  uuid: "00000000-0000-4000-8000-000000000000",
};

/**
 * The fields of a body: name, settled schema, whether it must be there, whether it may be null, its default,
 * and the kind of control that fits.
 */
export function fields(schema) {
  const body = settle(schema ?? {}, schema);
  return Object.entries(body.properties ?? {}).map(([name, part]) => {
    const settled = settle(part, schema);
    const choices = part.anyOf ?? part.oneOf ?? [part];
    const isNullable = choices.some((choice) => [choice.type].flat().includes("null"));
    return {
      name,
      schema: settled,
      isRequired: (body.required ?? []).includes(name),
      isNullable,
      default: part.default,
      hint: part.description ?? settled.description ?? "",
      kind: kindOf(name, settled, choices.length - Number(isNullable)),
    };
  });
}

/** What the class says of its bodies. */
export const about = (schema) => settle(schema ?? {}, schema).description ?? "";

function kindOf(name, schema, choices) {
  if (choices > 1) return "json"; // a union: which control fits is for the value to say
  const type = [schema.type].flat().find((one) => one !== "null");
  if (schema.enum?.length) return "choice";
  if (type === "string") return isPicture(name, schema) ? "picture" : "text";
  return { integer: "number", number: "number", boolean: "switch" }[type] ?? "json";
}

/** Declared by its content type; a plain text called image is taken for one too. */
function isPicture(name, schema) {
  if (schema.contentMediaType) return schema.contentMediaType.startsWith("image/");
  return name === "image" && !schema.format && !(schema.maxLength < 100);
}

/** The first field that carries a picture, or undefined. */
export const pictureField = (schema) => fields(schema).find(({ kind }) => kind === "picture")?.name;
