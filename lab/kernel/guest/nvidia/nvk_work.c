// A Vulkan program for NVK: a device, memory of each type, written and read by the host, and
// transfers by its queue. Prints "right NAME" or "wrong NAME" for each step.
#define VK_NO_PROTOTYPES
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <vulkan/vulkan.h>

#define TRY(call) do { VkResult r_ = (call); if (r_) { printf("wrong %s = %d\n", #call, r_); exit(1); } } while (0)
#define CALLS(X) \
  X(vkEnumeratePhysicalDevices) X(vkGetPhysicalDeviceProperties) X(vkGetPhysicalDeviceMemoryProperties) \
  X(vkGetPhysicalDeviceQueueFamilyProperties) X(vkCreateDevice) X(vkCreateBuffer) \
  X(vkGetBufferMemoryRequirements) X(vkAllocateMemory) X(vkBindBufferMemory) X(vkFreeMemory) X(vkDestroyBuffer) \
  X(vkMapMemory) X(vkUnmapMemory) X(vkDestroyDevice) X(vkDestroyInstance) X(vkGetDeviceQueue) \
  X(vkCreateCommandPool) X(vkAllocateCommandBuffers) X(vkBeginCommandBuffer) X(vkEndCommandBuffer) \
  X(vkCmdFillBuffer) X(vkCmdUpdateBuffer) X(vkCmdCopyBuffer) X(vkCmdPipelineBarrier) X(vkQueueSubmit) \
  X(vkCreateFence) X(vkWaitForFences) X(vkDestroyFence) X(vkDestroyCommandPool)
#define DECLARE(name) static PFN_##name name;
CALLS(DECLARE)

enum { WORDS = 17 << 10 };  // more than a page of 64 KiB; each access of the GPU's memory is a message

static uint32_t pattern(uint32_t i, uint32_t seed) { return i * 2654435761u + seed; }

// Write through one mapping and read through another one.
static void use(VkDevice device, VkBuffer buffer, VkDeviceSize size, uint32_t type, VkMemoryPropertyFlags flags) {
  VkMemoryAllocateInfo ask = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = size, .memoryTypeIndex = type};
  VkDeviceMemory memory;
  TRY(vkAllocateMemory(device, &ask, 0, &memory));
  TRY(vkBindBufferMemory(device, buffer, memory, 0));
  int well = 1;
  if (flags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT) {
    volatile uint32_t *words;
    TRY(vkMapMemory(device, memory, 0, 4 * WORDS, 0, (void **)&words));
    for (uint32_t i = 0; i < WORDS; i++) words[i] = pattern(i, type);
    vkUnmapMemory(device, memory);
    TRY(vkMapMemory(device, memory, 0, 4 * WORDS, 0, (void **)&words));
    for (uint32_t i = 0; i < WORDS; i++) well &= words[i] == pattern(i, type);
    vkUnmapMemory(device, memory);
  }
  printf("%s memory of type %u, flags %#x\n", well ? "right" : "wrong", type, flags);
  vkFreeMemory(device, memory, 0);
}

static void every_memory(VkPhysicalDevice gpu, VkDevice device) {
  VkPhysicalDeviceMemoryProperties types;
  vkGetPhysicalDeviceMemoryProperties(gpu, &types);
  for (uint32_t type = 0; type < types.memoryTypeCount; type++) {
    VkBufferCreateInfo info = {VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = 4 * WORDS, .usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT};
    VkBuffer buffer;
    TRY(vkCreateBuffer(device, &info, 0, &buffer));
    VkMemoryRequirements needed;
    vkGetBufferMemoryRequirements(device, buffer, &needed);
    if (needed.memoryTypeBits >> type & 1)
      use(device, buffer, needed.size, type, types.memoryTypes[type].propertyFlags);
    vkDestroyBuffer(device, buffer, 0);
  }
}

enum { PART = 16 << 10, UPDATED = 1 << 10 };  // words of a transfer, and of an update

// A buffer with memory of its own, of the first type with these properties.
static VkBuffer buffer_in(VkPhysicalDevice gpu, VkDevice device, VkMemoryPropertyFlags flags, uint32_t **words) {
  VkBufferCreateInfo info = {VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = 4 * PART,
                             .usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT};
  VkPhysicalDeviceMemoryProperties types;
  VkMemoryRequirements needed;
  VkBuffer buffer;
  VkDeviceMemory memory;
  uint32_t type = 0;
  TRY(vkCreateBuffer(device, &info, 0, &buffer));
  vkGetBufferMemoryRequirements(device, buffer, &needed);
  vkGetPhysicalDeviceMemoryProperties(gpu, &types);
  while (type < types.memoryTypeCount &&
         ((types.memoryTypes[type].propertyFlags & flags) != flags || !(needed.memoryTypeBits >> type & 1))) type++;
  if (type == types.memoryTypeCount) printf("wrong no memory with flags %#x\n", flags), exit(1);
  VkMemoryAllocateInfo ask = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = needed.size, .memoryTypeIndex = type};
  TRY(vkAllocateMemory(device, &ask, 0, &memory));
  TRY(vkBindBufferMemory(device, buffer, memory, 0));
  if (words) TRY(vkMapMemory(device, memory, 0, 4 * PART, 0, (void **)words));
  return buffer;
}

// Host to video memory, an update and a fill there, and back.
static void transfers(VkPhysicalDevice gpu, VkDevice device) {
  static uint32_t update[UPDATED];
  uint32_t *source, *target;
  VkMemoryPropertyFlags visible = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  VkBuffer from = buffer_in(gpu, device, visible, &source), to = buffer_in(gpu, device, visible, &target);
  VkBuffer video = buffer_in(gpu, device, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0);
  for (uint32_t i = 0; i < PART; i++) source[i] = pattern(i, 3), target[i] = 0;
  for (uint32_t i = 0; i < UPDATED; i++) update[i] = pattern(i, 5);
  VkQueue queue;
  vkGetDeviceQueue(device, 0, 0, &queue);
  VkCommandPoolCreateInfo pooled = {VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
  VkCommandPool pool;
  TRY(vkCreateCommandPool(device, &pooled, 0, &pool));
  VkCommandBufferAllocateInfo one = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = pool, .commandBufferCount = 1};
  VkCommandBuffer commands;
  TRY(vkAllocateCommandBuffers(device, &one, &commands));
  VkCommandBufferBeginInfo begin = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
  VkMemoryBarrier barrier = {VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                             .dstAccessMask = VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT | VK_ACCESS_HOST_READ_BIT};
#define WAIT() vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_TRANSFER_BIT, \
    VK_PIPELINE_STAGE_TRANSFER_BIT | VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &barrier, 0, 0, 0, 0)
  VkBufferCopy whole = {0, 0, 4 * PART};
  TRY(vkBeginCommandBuffer(commands, &begin));
  vkCmdCopyBuffer(commands, from, video, 1, &whole);
  WAIT();
  vkCmdFillBuffer(commands, video, 4 * 4096, 4 * 4096, 0xC0FFEE11);
  vkCmdUpdateBuffer(commands, video, 4 * 8192, 4 * UPDATED, update);
  WAIT();
  vkCmdCopyBuffer(commands, video, to, 1, &whole);
  WAIT();
  TRY(vkEndCommandBuffer(commands));
  printf("right commands\n");
  VkFenceCreateInfo fenced = {VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
  VkFence fence;
  TRY(vkCreateFence(device, &fenced, 0, &fence));
  VkSubmitInfo submit = {VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &commands};
  TRY(vkQueueSubmit(queue, 1, &submit, fence));
  printf("right submission\n");
  TRY(vkWaitForFences(device, 1, &fence, 1, 100000000000ull));
  int copied = 1, filled = 1, updated = 1;
  for (uint32_t i = 0; i < PART; i++) {
    if (i >= 4096 && i < 8192) filled &= target[i] == 0xC0FFEE11;
    else if (i >= 8192 && i < 8192 + UPDATED) updated &= target[i] == update[i - 8192];
    else copied &= target[i] == source[i];
  }
  printf("%s vkCmdCopyBuffer\n", copied ? "right" : "wrong");
  printf("%s vkCmdFillBuffer\n", filled ? "right" : "wrong");
  printf("%s vkCmdUpdateBuffer\n", updated ? "right" : "wrong");
  vkDestroyFence(device, fence, 0);
  vkDestroyCommandPool(device, pool, 0);
}

int main(void) {
  setvbuf(stdout, 0, _IONBF, 0);
  void *loader = dlopen("libvulkan.so.1", RTLD_NOW);
  if (!loader) printf("wrong %s\n", dlerror()), exit(1);
  PFN_vkGetInstanceProcAddr find = (PFN_vkGetInstanceProcAddr)dlsym(loader, "vkGetInstanceProcAddr");
  PFN_vkCreateInstance create = (PFN_vkCreateInstance)find(0, "vkCreateInstance");
  VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
  VkInstance instance;
  TRY(create(&info, 0, &instance));
#define LOAD(name) name = (PFN_##name)find(instance, #name);
  CALLS(LOAD)
  VkPhysicalDevice gpu;
  uint32_t count = 1;
  TRY(vkEnumeratePhysicalDevices(instance, &count, &gpu));
  VkPhysicalDeviceProperties properties;
  vkGetPhysicalDeviceProperties(gpu, &properties);
  printf("right device %s\n", properties.deviceName);
  VkQueueFamilyProperties families[16];
  uint32_t many = 16;
  vkGetPhysicalDeviceQueueFamilyProperties(gpu, &many, families);
  for (uint32_t i = 0; i < many; i++) printf("family %u: flags %#x\n", i, families[i].queueFlags);
  float priority = 1;
  VkDeviceQueueCreateInfo one = {VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1, .pQueuePriorities = &priority};
  VkDeviceCreateInfo ask = {VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .queueCreateInfoCount = 1, .pQueueCreateInfos = &one};
  VkDevice device;
  TRY(vkCreateDevice(gpu, &ask, 0, &device));
  printf("right logical device\n");
  every_memory(gpu, device);
  transfers(gpu, device);
  vkDestroyDevice(device, 0);
  vkDestroyInstance(instance, 0);
  printf("right end\n");
  return 0;
}
