// A call as a command for curl.

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** The command for a call of url, headers and body. */
export function curlCommand({ url, headers, body }, isShort) {
  const { before, data } = body.curl(isShort);
  const [print, text, rest = ""] = before ?? [];
  const lines = Object.entries(headers).map(([name, value]) => `-H ${quote(`${name}: ${value}`)}`);
  const [option, value] = data;
  const sent = `${option} ${value === "@-" ? value : quote(value)}`;
  return (
    (before ? `${print} ${quote(text)}${rest} |\n` : "") +
    [`curl -i ${quote(url)}`, ...lines, sent].join(" \\\n  ")
  );
}
