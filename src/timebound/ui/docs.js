// Starts Swagger UI on this server's own document. It asks nobody else: no validator, no other settings.

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
follow();
dark.addEventListener("change", follow);

const shown = SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  queryConfigEnabled: false,
  tryItOutEnabled: true,
  validatorUrl: null,
  onComplete: () => {
    document.title = shown.specSelectors.info().get("title");
  },
  // The key that was given on the front page, for the document itself; calls have a button of their own.
  requestInterceptor: (request) => {
    const key = sessionStorage.getItem("timebound-key");
    if (key && !request.headers["X-API-Key"]) request.headers["X-API-Key"] = key;
    return request;
  },
});
