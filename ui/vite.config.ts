import { svelte } from "@sveltejs/vite-plugin-svelte";
import type { ProxyOptions } from "vite";
import { defineConfig } from "vitest/config";

/** For `npm run dev`: a server that runs beside. It refuses pages of other origins, so ours is not mentioned. */
const server: ProxyOptions = {
  target: process.env["HOLDFAST_SERVER"] ?? "http://127.0.0.1:8642",
  configure: (proxy) => proxy.on("proxyReq", (request) => request.removeHeader("origin")),
};

// The page is served by the server itself under a policy that allows its own files alone,
// so nothing may be inlined and nothing may come from elsewhere.
export default defineConfig({
  plugins: [svelte()],
  build: {
    outDir: "../src/holdfast/web/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    target: "es2022",
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: { proxy: { "/v1": server, "/health": server } },
  test: { include: ["tests/**/*.test.ts"], environment: "node" },
});
